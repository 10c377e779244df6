#include "bimetal/python/object.h"

#include <c10/util/intrusive_ptr.h>

#include <new>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/c10d/backend_error.h"

// As Python's documentation has them under "Stable ABI"; what is a macro or a struct there is not
// used.
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

// Of libtorch_python, whose headers need Python's.
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

bool Object::is_none() const noexcept {
  return object_ == &_Py_NoneStruct;
}

Object Object::attribute(const char* name) const {
  return Object(PyObject_GetAttrString(object_, name));
}

Object imported(const char* module) {
  return Object(PyImport_ImportModule(module));
}

Object text(std::string_view utf8) {
  return Object(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace"));
}

Object integer(std::int64_t value) {
  return Object(PyLong_FromLongLong(value));
}

Object number(double value) {
  return Object(PyFloat_FromDouble(value));
}

Object boolean(bool value) {
  return Object(PyBool_FromLong(value ? 1 : 0));
}

Object none() {
  return Object::borrowed(&_Py_NoneStruct);
}

Object tensor(const torch::Tensor& value) {
  return Object(THPVariable_Wrap(value));
}

Object tuple(std::size_t size) {
  return Object(PyTuple_New(static_cast<Py_ssize_t>(size)));
}

Object list(std::size_t size) {
  return Object(PyList_New(static_cast<Py_ssize_t>(size)));
}

void set_in_tuple(const Object& tuple, std::size_t at, Object item) {
  if (PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(at), item.release()) != 0) {
    throw PythonError();
  }
}

void set_in_list(const Object& list, std::size_t at, Object item) {
  if (PyList_SetItem(list.get(), static_cast<Py_ssize_t>(at), item.release()) != 0) {
    throw PythonError();
  }
}

Object dictionary() {
  return Object(PyDict_New());
}

void set_in_dictionary(const Object& dictionary, const char* key, const Object& item) {
  if (PyDict_SetItemString(dictionary.get(), key, item.get()) != 0) throw PythonError();
}

std::int64_t integer_of(PyObject* object) {
  const auto value = PyLong_AsLongLong(object);
  if (value == -1 && is_raised()) throw PythonError();
  return value;
}

double number_of(PyObject* object) {
  const double value = PyFloat_AsDouble(object);
  if (value == -1 && is_raised()) throw PythonError();
  return value;
}

bool truth_of(PyObject* object) {
  const int value = PyObject_IsTrue(object);
  if (value < 0) throw PythonError();
  return value != 0;
}

std::string text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(object, &size);
  if (utf8 == nullptr) throw PythonError();
  return {utf8, static_cast<std::size_t>(size)};
}

torch::Tensor tensor_of(PyObject* object) {
  static PyObject* kind = nullptr;  // set with the lock, and never let go
  if (kind == nullptr) kind = imported("torch").attribute("Tensor").release();
  const int is_one = PyObject_IsInstance(object, kind);
  if (is_one < 0) throw PythonError();
  if (is_one == 0) raise_type_error("a torch.Tensor was expected");
  // "_cdata" is where the TensorImpl is.
  const Object address(PyObject_GetAttrString(object, "_cdata"));
  auto* impl = static_cast<c10::TensorImpl*>(PyLong_AsVoidPtr(address.get()));
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return torch::Tensor(Pointer::unsafe_reclaim_from_nonowning(impl));
}

Object tuple_of(PyObject* object) {
  return Object(PySequence_Tuple(object));
}

std::size_t size_of_tuple(const Object& tuple) {
  const auto size = PyTuple_Size(tuple.get());
  if (size < 0) throw PythonError();
  return static_cast<std::size_t>(size);
}

PyObject* item_of_tuple(const Object& tuple, std::size_t at) {
  PyObject* item = PyTuple_GetItem(tuple.get(), static_cast<Py_ssize_t>(at));
  if (item == nullptr) throw PythonError();
  return item;
}

Object items_of(PyObject* dictionary) {
  const Object items(PyDict_Items(dictionary));
  return tuple_of(items.get());
}

Object called(PyObject* function, const Object& arguments) {
  return Object(PyObject_CallObject(function, arguments.get()));
}

namespace {

constexpr const char* kCapsule = "bimetal";

struct InCapsule {
  void* object;
  void (*end)(void*);
};

void end_capsule(PyObject* capsule) {
  const std::unique_ptr<InCapsule> kept(
      static_cast<InCapsule*>(PyCapsule_GetPointer(capsule, kCapsule)));
  const Unlocked unlocked;
  kept->end(kept->object);
}

}  // namespace

Object capsule(void* object, void (*end)(void*)) {
  auto kept = std::make_unique<InCapsule>(InCapsule{object, end});
  Object made(PyCapsule_New(kept.get(), kCapsule, end_capsule));
  kept.release();  // NOLINT(bugprone-unused-return-value)
  return made;
}

void* in_capsule(PyObject* capsule) {
  auto* kept = static_cast<InCapsule*>(PyCapsule_GetPointer(capsule, kCapsule));
  if (kept == nullptr) throw PythonError();
  return kept->object;
}

Locked::Locked() : state_(PyGILState_Ensure()) {}

Locked::~Locked() {
  PyGILState_Release(state_);
}

Unlocked::Unlocked() : thread_(PyEval_SaveThread()) {}

Unlocked::~Unlocked() {
  PyEval_RestoreThread(thread_);
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
  const Object of_type = type == nullptr ? none() : Object(type);
  const Object with = trace == nullptr ? none() : Object(trace);
  if (value == nullptr) value = none().release();
  raised_ = Held(Object(value));
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  PyObject* said = PyObject_Str(value);
  Py_ssize_t size = 0;
  const char* words = said == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(said, &size);
  if (words != nullptr) what_.assign(words, static_cast<std::size_t>(size));
  if (said != nullptr) Py_DecRef(said);
  PyErr_Clear();  // an exception may be unable to say what it is
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

bool is_raised() noexcept {
  return PyErr_Occurred() != nullptr;
}

void raise_type_error(const std::string& message) {
  PyErr_SetString(PyExc_TypeError, message.c_str());
  throw PythonError();
}

namespace {

// Never released: errors may come while the interpreter is shutting down.
PyObject* error_class = nullptr;

void raise_ours(const std::string& message, ErrorCode code, std::optional<int> rank) {
  if (error_class == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, message.c_str());
    return;
  }
  const Object arguments = tuple(3);
  set_in_tuple(arguments, 0, text(message));
  set_in_tuple(arguments, 1, text(to_string(code)));
  set_in_tuple(arguments, 2, rank ? integer(*rank) : none());
  PyErr_SetObject(error_class, called(error_class, arguments).get());
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
  PyObject* before = error_class;
  error_class = Object(type).release();
  if (before != nullptr) Py_DecRef(before);
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
