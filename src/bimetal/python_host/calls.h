#pragma once
// Calls from the program's threads into Python: with the interpreter's lock, and with Python's
// exceptions as errors of ours.

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/task/unit.h"

namespace bimetal::python_host {

/// A Python object that threads without the interpreter's lock may copy and drop.
class Held {
 public:
  Held() = default;
  /// With the interpreter's lock.
  explicit Held(pybind11::object object);

  /// With the interpreter's lock.
  const pybind11::object& operator*() const { return *object_; }

 private:
  std::shared_ptr<const pybind11::object> object_;
};

/// OutOfMemory where Python says so, else InvalidArgument: "<what>:" and the traceback.
Error error_of(const pybind11::error_already_set& error, const std::string& what);

/// `call()` with the interpreter's lock. What it gives back must be no Python object. Errors: those
/// of `call`, and error_of Python's exceptions.
template <class Call>
auto in_python(const std::string& what, Call&& call) {
  const pybind11::gil_scoped_acquire lock;
  try {
    return std::forward<Call>(call)();
  } catch (const pybind11::error_already_set& error) {
    throw error_of(error, what);
  }
}

/// Tensors as a tuple, and back. With the interpreter's lock.
pybind11::tuple tuple_of(const task::Values& values);
task::Values values_of(const pybind11::handle& tuple);

}  // namespace bimetal::python_host
