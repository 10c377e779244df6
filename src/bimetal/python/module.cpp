#include "bimetal/python/bindings.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Bimetal's C++ core; use it through the package bimetal.";
  bimetal::python::bind_errors(module);
  bimetal::python::bind_process_groups(module);
  bimetal::python::bind_balance(module);
  bimetal::python::bind_serving(module);
}
