#include "bimetal/python/object.h"

#include <c10/util/intrusive_ptr.h>

#include <new>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/c10d/torch_bridge.h"
#include "bimetal/python/convert.h"

// Declared as in libtorch_python, whose headers need Python's.
PyObject* THPVariable_Wrap(const at::TensorBase& tensor);
namespace torch {
void translate_exception_to_python(const std::exception_ptr& thrown);
}

namespace bimetal::python {

Object::Object(PyObject* made) : object_(made) {
  if (made == nullptr) throw PythonError();
}

Object Object::borrowed(PyObject* object) {
  Py_IncRef(object);
  return Object(object);
}

Object::Object(const Object& other) : object_(other.object_) {
  if (object_ != nullptr) Py_IncRef(object_);
}

Object::~Object() {
  if (object_ != nullptr) Py_DecRef(object_);
}

Object Object::attribute(const char* name) const {
  return Object(PyObject_GetAttrString(object_, name));
}

Object none() {
  return Object::borrowed(&_Py_NoneStruct);
}

Object tensor(const torch::Tensor& value) {
  return Object(THPVariable_Wrap(value));
}

torch::Tensor tensor_of(PyObject* object) {
  static PyObject* kind = nullptr;  // set with the lock, and never let go
  if (kind == nullptr) kind = Object(PyImport_ImportModule("torch")).attribute("Tensor").release();
  const int is_one = PyObject_IsInstance(object, kind);
  if (is_one < 0) throw PythonError();
  if (is_one == 0) raise_type_error("a torch.Tensor was expected");
  // "_cdata" is where the TensorImpl is.
  const Object address(PyObject_GetAttrString(object, "_cdata"));
  auto* impl = static_cast<c10::TensorImpl*>(PyLong_AsVoidPtr(address.get()));
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return torch::Tensor(Pointer::unsafe_reclaim_from_nonowning(impl));
}

Held::Held(Object object)
    : object_(new Object(std::move(object)), [](const Object* held) {
        if (Py_IsInitialized() == 0) return;  // it has gone with the interpreter
        const Locked locked;
        delete held;
      }) {}

PythonError::PythonError() {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value == nullptr) value = none().release();
  raised_ = Held(Object(value));
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  for (PyObject* other : {type, trace}) {
    if (other != nullptr) Py_DecRef(other);
  }
  PyObject* said = PyObject_Str(value);
  Py_ssize_t size = 0;
  const char* words = said == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(said, &size);
  if (words != nullptr) what_.assign(words, static_cast<std::size_t>(size));
  if (said != nullptr) Py_DecRef(said);
  PyErr_Clear();  // an exception may be unable to describe itself
}

bool PythonError::is_exception() const {
  return PyErr_GivenExceptionMatches((*raised_).get(), PyExc_Exception) != 0;
}

bool PythonError::is_memory_error() const {
  return PyErr_GivenExceptionMatches((*raised_).get(), PyExc_MemoryError) != 0;
}

void PythonError::restore() const {
  PyObject* type = PyObject_Type((*raised_).get());
  PyErr_SetObject(type, (*raised_).get());
  Py_DecRef(type);
}

void raise_type_error(const std::string& message) {
  PyErr_SetString(PyExc_TypeError, message.c_str());
  throw PythonError();
}

namespace {

/// The package's class. Never released: errors may come while the interpreter is shutting down.
PyObject* error_class = nullptr;

void raise_ours(const std::string& message, ErrorCode code, std::optional<int> rank) {
  if (error_class == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, message.c_str());
    return;
  }
  const Object type = Object::borrowed(error_class);
  PyErr_SetObject(error_class, type(message, std::string(to_string(code)), rank).get());
}

void raise(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PythonError& error) {
    error.restore();
  } catch (const c10d::BackendError& error) {
    raise_ours(error.what_without_backtrace(), error.code(), error.rank());
  } catch (const Error& error) {
    raise_ours(error.what(), error.code(), error.rank());
  } catch (const std::bad_alloc& error) {
    PyErr_SetString(PyExc_MemoryError, error.what());
  } catch (...) {
    torch::translate_exception_to_python(thrown);
  }
}

}  // namespace

void set_error_class(const Object& type) {
  error_class = Object(type).release();
}

void raise_as_python(const std::exception_ptr& thrown) noexcept {
  try {
    raise(thrown);
  } catch (const PythonError& error) {  // of the class itself
    error.restore();
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an error that is none of Python's");
  }
}

}  // namespace bimetal::python
