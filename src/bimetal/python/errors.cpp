#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/c10d/backend_error.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

namespace py = pybind11;

// Never released: errors may come while the interpreter is shutting down.
PyObject* error_class = nullptr;

void raise(const std::string& message, ErrorCode code, std::optional<int> rank) {
  if (error_class == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, message.c_str());
    return;
  }
  const auto type = py::reinterpret_borrow<py::object>(error_class);
  const py::object error = type(message, std::string(to_string(code)), rank);
  PyErr_SetObject(error_class, error.ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const c10d::BackendError& error) {
    raise(error.what_without_backtrace(), error.code(), error.rank());
  } catch (const Error& error) {
    raise(error.what(), error.code(), error.rank());
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  py::register_exception_translator(translate);
  module.def("set_error_class", [](const py::object& type) {
    Py_XDECREF(error_class);
    error_class = py::object(type).release().ptr();
  });
}

}  // namespace bimetal::python
