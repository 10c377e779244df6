#pragma once
// How objects end that wait for other ranks meanwhile.

#include <torch/csrc/utils/pybind.h>

#include <memory>

namespace bimetal::python {

/// For what others, who may need the interpreter's lock for their own end, are waited for.
struct EndWithoutLock {
  template <class Object>
  void operator()(Object* object) const {
    const pybind11::gil_scoped_release unlocked;
    delete object;
  }
};

template <class Object>
using EndsWithoutLock = std::unique_ptr<Object, EndWithoutLock>;

}  // namespace bimetal::python
