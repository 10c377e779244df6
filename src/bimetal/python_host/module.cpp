// bimetal._program: the command line program as a function, for a process that is Python's.

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/program.h"
#include "bimetal/python_host/hosted_task.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/dropout.h"

namespace bimetal::python_host {
namespace {

/// Without the interpreter's lock, which autograd and the program's threads take as they need it.
int run(std::vector<std::string> arguments) {
  task::set_python_task_maker(host_task);
  std::vector<char*> pointers;
  for (auto& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  return cli::run_program(static_cast<int>(arguments.size()), pointers.data());
}

}  // namespace
}  // namespace bimetal::python_host

PYBIND11_MODULE(_program, module) {
  namespace py = pybind11;
  module.doc() = "The program bimetal, in this process; use it by python -m bimetal.program.";
  module.def("run", bimetal::python_host::run, py::arg("arguments"),
             py::call_guard<py::gil_scoped_release>());
  module.def(
      "note_output", [](const std::string& line) { bimetal::cli::note_output(line); },
      py::arg("line"), py::call_guard<py::gil_scoped_release>());
  module.def("in_a_step", [] { return bimetal::task::current_draws() != nullptr; });
  const auto dropout_by_sample = [](const torch::Tensor& x, double p, std::int64_t layer) {
    return bimetal::task::dropout_by_sample(x, p, layer);
  };
  module.def("dropout_by_sample", dropout_by_sample, py::arg("x"), py::arg("p"), py::arg("layer"),
             py::call_guard<py::gil_scoped_release>());
}
