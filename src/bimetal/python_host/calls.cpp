#include "bimetal/python_host/calls.h"

#include <fmt/format.h>

#include <exception>

#include "bimetal/device/out_of_memory.h"

namespace bimetal::python_host {

namespace py = pybind11;

namespace {

std::string traceback_of(const py::error_already_set& error) {
  const py::list lines = py::module_::import("traceback")
                             .attr("format_exception")(error.type(), error.value(), error.trace());
  std::string text;
  for (const auto& line : lines) text += py::cast<std::string>(line);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

Held::Held(py::object object)
    : object_(new py::object(std::move(object)), [](const py::object* held) {
        if (!Py_IsInitialized()) return;  // it has gone with the interpreter
        const py::gil_scoped_acquire lock;
        delete held;
      }) {}

Error error_of(const py::error_already_set& error, const std::string& what) {
  const bool no_memory =
      error.matches(PyExc_MemoryError) || device::is_out_of_memory(std::current_exception());
  // Nobody else knows the way through the user's own code.
  return Error(no_memory ? ErrorCode::OutOfMemory : ErrorCode::InvalidArgument,
               fmt::format("{}:\n{}", what, traceback_of(error)));
}

py::tuple tuple_of(const task::Values& values) {
  py::tuple tuple(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) tuple[i] = py::cast(values[i]);
  return tuple;
}

task::Values values_of(const py::handle& tuple) {
  task::Values values;
  for (const auto& value : tuple) values.push_back(py::cast<torch::Tensor>(value));
  return values;
}

}  // namespace bimetal::python_host
