#include "bimetal/python/bindings.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Bimetal's C++ core; use it through the package bimetal.";
  bimetal::python::bind_errors(module);
  bimetal::python::bind_process_groups(module);
  bimetal::python::bind_checkpoints(module);
  bimetal::python::bind_deepspeed(module);
  bimetal::python::bind_sharding(module);
  bimetal::python::bind_pipeline(module);
  bimetal::python::bind_tensor(module);
  bimetal::python::bind_optimizers(module);
  bimetal::python::bind_serving(module);
  bimetal::python::bind_monitor(module);
}
