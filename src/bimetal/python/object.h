#pragma once
// Python's objects in C++, by functions of its stable ABI alone: without a header of Python's, so
// that one library serves every Python from 3.10 on. Its lock ("the lock" here) is held wherever
// nothing else is said. Failures are thrown as PythonError.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <utility>

struct _object;
using PyObject = struct _object;

extern "C" {
using Py_ssize_t = std::ptrdiff_t;
using PyCapsule_Destructor = void (*)(PyObject*);
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
int Py_IsInitialized();
int PyGILState_Ensure();
void PyGILState_Release(int);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
PyObject* PyImport_ImportModule(const char*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
PyObject* PyObject_Str(PyObject*);
PyObject* PyObject_Type(PyObject*);
int PyObject_IsTrue(PyObject*);
int PyObject_IsInstance(PyObject*, PyObject*);
PyObject* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(PyObject*);
void* PyLong_AsVoidPtr(PyObject*);
PyObject* PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject*);
PyObject* PyBool_FromLong(long);
PyObject* PyUnicode_DecodeUTF8(const char*, Py_ssize_t, const char*);
const char* PyUnicode_AsUTF8AndSize(PyObject*, Py_ssize_t*);
PyObject* PySequence_Tuple(PyObject*);
PyObject* PyTuple_New(Py_ssize_t);
Py_ssize_t PyTuple_Size(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
int PyTuple_SetItem(PyObject*, Py_ssize_t, PyObject*);
PyObject* PyList_New(Py_ssize_t);
int PyList_SetItem(PyObject*, Py_ssize_t, PyObject*);
PyObject* PyDict_New();
PyObject* PyDict_Items(PyObject*);
int PyDict_SetItemString(PyObject*, const char*, PyObject*);
PyObject* PyCapsule_New(void*, const char*, PyCapsule_Destructor);
void* PyCapsule_GetPointer(PyObject*, const char*);
PyObject* PyErr_Occurred();
void PyErr_Clear();
void PyErr_Fetch(PyObject**, PyObject**, PyObject**);
void PyErr_NormalizeException(PyObject**, PyObject**, PyObject**);
void PyErr_SetObject(PyObject*, PyObject*);
void PyErr_SetString(PyObject*, const char*);
int PyErr_GivenExceptionMatches(PyObject*, PyObject*);
int PyException_SetTraceback(PyObject*, PyObject*);
extern PyObject* PyExc_Exception;
extern PyObject* PyExc_MemoryError;
extern PyObject* PyExc_RuntimeError;
extern PyObject* PyExc_TypeError;
extern PyObject _Py_NoneStruct;
}

namespace bimetal::python {

/// One reference, which goes with this. May be empty.
class Object {
 public:
  Object() = default;
  /// Takes a new reference over, as Python's functions give them. If it is null, throws the
  /// exception that they have raised.
  explicit Object(PyObject* made);
  static Object borrowed(PyObject* object);
  Object(const Object& other);
  Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Object& operator=(Object other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Object();

  PyObject* get() const noexcept { return object_; }
  PyObject* release() noexcept { return std::exchange(object_, nullptr); }
  bool is_none() const noexcept { return object_ == &_Py_NoneStruct; }

  Object attribute(const char* name) const;
  /// Calls it.
  template <class... Arguments>
  Object operator()(const Arguments&... arguments) const;
  /// As convert.h has the type.
  template <class T>
  T as() const;

 private:
  PyObject* object_ = nullptr;
};

Object none();
/// The same tensor as Python's, not a copy.
torch::Tensor tensor_of(PyObject* object);
/// None where it is undefined.
Object tensor(const torch::Tensor& value);

/// Takes the lock, from any thread.
class Locked {
 public:
  Locked() : state_(PyGILState_Ensure()) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  int state_;
};

/// Lets go of the lock meanwhile: for what waits, and for what needs it in other threads.
class Unlocked {
 public:
  Unlocked() : thread_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(thread_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  void* thread_;
};

/// An object that threads without the lock may copy and drop.
class Held {
 public:
  Held() = default;
  explicit Held(Object object);

  /// With the lock.
  const Object& operator*() const { return *object_; }

 private:
  std::shared_ptr<const Object> object_;
};

/// A Python exception on its way through C++.
class PythonError : public std::exception {
 public:
  /// Takes it from the interpreter, where it is for this thread.
  PythonError();

  const char* what() const noexcept override { return what_.c_str(); }
  const Object& raised() const { return *raised_; }
  /// Whether it's one that programs go on after: not Ctrl-C, nor sys.exit().
  bool is_exception() const;
  bool is_memory_error() const;
  /// Gives it back to the interpreter.
  void restore() const;

 private:
  Held raised_;
  std::string what_;
};

/// Raises TypeError as a PythonError.
[[noreturn]] void raise_type_error(const std::string& message);

/// The class of Python's exceptions for errors of ours: `type(message, code, rank)`.
void set_error_class(const Object& type);
/// Raises in Python what C++ has thrown: errors of ours as that class, all else as torch does.
void raise_as_python(const std::exception_ptr& thrown) noexcept;

}  // namespace bimetal::python
