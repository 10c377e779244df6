#pragma once
// Python's objects in C++, by functions of its stable ABI alone: without a header of Python's, so
// that one library serves every Python from 3.10 on. Its lock ("the lock" here) is held wherever
// nothing else is said. Failures are thrown as PythonError.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

struct _object;
using PyObject = struct _object;

namespace bimetal::python {

/// One reference, which goes with this. May be empty.
class Object {
 public:
  Object() = default;
  /// Takes a new reference over, as Python's functions give them. Throws what they have raised
  /// where there is none.
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
  bool is_none() const noexcept;

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

Object imported(const char* module);
Object text(std::string_view utf8);
Object integer(std::int64_t value);
Object number(double value);
Object boolean(bool value);
Object none();
/// Of a tensor what Python has of it: the same tensor, not a copy. None where it is undefined.
Object tensor(const torch::Tensor& value);
Object tuple(std::size_t size);
Object list(std::size_t size);
/// In a tuple, or a list, that is new.
void set_in_tuple(const Object& tuple, std::size_t at, Object item);
void set_in_list(const Object& list, std::size_t at, Object item);
Object dictionary();
void set_in_dictionary(const Object& dictionary, const char* key, const Object& item);

std::int64_t integer_of(PyObject* object);
double number_of(PyObject* object);
bool truth_of(PyObject* object);
std::string text_of(PyObject* object);
torch::Tensor tensor_of(PyObject* object);
/// Of a list, a tuple, or whatever can be gone through.
Object tuple_of(PyObject* object);
std::size_t size_of_tuple(const Object& tuple);
/// Borrowed.
PyObject* item_of_tuple(const Object& tuple, std::size_t at);
/// A tuple of (key, value).
Object items_of(PyObject* dictionary);
Object called(PyObject* function, const Object& arguments);

/// Something of ours that Python keeps: `end` is called without the lock when Python drops it.
Object capsule(void* object, void (*end)(void*));
void* in_capsule(PyObject* capsule);

/// Takes the lock, from any thread.
class Locked {
 public:
  Locked();
  ~Locked();
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  int state_;
};

/// Lets go of the lock meanwhile: for what waits, and for what needs it in other threads.
class Unlocked {
 public:
  Unlocked();
  ~Unlocked();
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

/// What Python has raised, on its way through C++.
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

/// Whether something is raised in this thread that Python has not been told yet.
bool is_raised() noexcept;
/// Raises TypeError as a PythonError.
[[noreturn]] void raise_type_error(const std::string& message);

/// What Python makes its exceptions of for errors of ours: `type(message, code, rank)`.
void set_error_class(const Object& type);
/// Raises in Python what C++ has thrown: errors of ours as that class, all else as torch does.
void raise_as_python(const std::exception_ptr& thrown) noexcept;

}  // namespace bimetal::python
