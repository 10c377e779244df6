#include <c10/util/Exception.h>

#include "bimetal/base/log.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

/// Warnings of the library become torch's, which programs know how to handle.
void pass_warnings_on() {
  set_log_sink([](LogLevel, std::string_view message) { TORCH_WARN("bimetal: ", message); },
               LogLevel::warning);
}

}  // namespace
}  // namespace bimetal::python

PYBIND11_MODULE(_C, module) {
  module.doc() = "Bimetal's C++ core; use it through the package bimetal.";
  bimetal::python::pass_warnings_on();
  bimetal::python::bind_errors(module);
  bimetal::python::bind_threads();
  bimetal::python::bind_process_groups(module);
  bimetal::python::bind_balance(module);
  bimetal::python::bind_files(module);
  bimetal::python::bind_checkpoints(module);
  bimetal::python::bind_deepspeed(module);
  bimetal::python::bind_sharding(module);
  bimetal::python::bind_pipeline(module);
  bimetal::python::bind_tensor(module);
  bimetal::python::bind_optimizers(module);
  bimetal::python::bind_serving(module);
  bimetal::python::bind_monitor(module);
}
