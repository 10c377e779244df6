#pragma once
// Converts C++ values to Python objects, and back: numbers, text, tensors, None for optional
// values, tuples, lists, dictionaries, callables, and objects of ours by reference. Call it with
// the lock.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bimetal/python/object.h"
#include "bimetal/task/unit.h"

namespace bimetal::python {

template <class T>
T& in_capsule(PyObject* capsule) {
  void* object = PyCapsule_GetPointer(capsule, "bimetal");
  if (object == nullptr) throw PythonError();
  return *static_cast<T*>(object);
}

/// For a type without one of its own: an object of ours, which bimetal._C has in `_object`.
template <class T>
struct Convert {
  static T& from(PyObject* object) {
    return in_capsule<T>(Object::borrowed(object).attribute("_object").get());
  }
};

/// An object of ours that Python keeps; it ends without the lock when Python drops it.
template <class T>
Object capsule(std::unique_ptr<T> object) {
  Object made(PyCapsule_New(object.get(), "bimetal", [](PyObject* dropped) {
    T* ended = &in_capsule<T>(dropped);
    const Unlocked unlocked;
    delete ended;
  }));
  object.release();  // NOLINT(bugprone-unused-return-value)
  return made;
}

template <class T>
Object to_python(const T& value) {
  return Convert<T>::to(value);
}

template <class T>
T Object::as() const {
  return Convert<T>::from(object_);
}

template <class... T>
Object tuple_with(const T&... values) {
  Object all(PyTuple_New(sizeof...(T)));
  Py_ssize_t at = 0;
  (PyTuple_SetItem(all.get(), at++, to_python(values).release()), ...);
  return all;
}

template <class... Arguments>
Object Object::operator()(const Arguments&... arguments) const {
  return Object(PyObject_CallObject(object_, tuple_with(arguments...).get()));
}

template <>
struct Convert<Object> {
  static Object from(PyObject* object) { return Object::borrowed(object); }
  static Object to(const Object& object) { return object; }
};

template <>
struct Convert<bool> {
  static bool from(PyObject* object) {
    const int truth = PyObject_IsTrue(object);
    if (truth < 0) throw PythonError();
    return truth != 0;
  }
  static Object to(bool value) { return Object(PyBool_FromLong(value ? 1 : 0)); }
};

template <class T>
requires std::is_integral_v<T>
struct Convert<T> {
  static T from(PyObject* object) {
    const auto value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    return static_cast<T>(value);
  }
  static Object to(T value) { return Object(PyLong_FromLongLong(static_cast<long long>(value))); }
};

template <class T>
requires std::is_floating_point_v<T>
struct Convert<T> {
  static T from(PyObject* object) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    return static_cast<T>(value);
  }
  static Object to(T value) { return Object(PyFloat_FromDouble(value)); }
};

template <>
struct Convert<std::string> {
  static std::string from(PyObject* object) {
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(object, &size);
    if (utf8 == nullptr) throw PythonError();
    return {utf8, static_cast<std::size_t>(size)};
  }
  static Object to(const std::string& value) {
    const auto size = static_cast<Py_ssize_t>(value.size());
    return Object(PyUnicode_DecodeUTF8(value.data(), size, "replace"));
  }
};

template <>
struct Convert<torch::Tensor> {
  static torch::Tensor from(PyObject* object) { return tensor_of(object); }
  static Object to(const torch::Tensor& value) { return tensor(value); }
};

template <class T>
struct Convert<std::optional<T>> {
  static std::optional<T> from(PyObject* object) {
    if (Object::borrowed(object).is_none()) return std::nullopt;
    return Convert<T>::from(object);
  }
  static Object to(const std::optional<T>& value) { return value ? to_python(*value) : none(); }
};

template <class T>
struct Convert<std::vector<T>> {
  static std::vector<T> from(PyObject* object) {
    const Object items(PySequence_Tuple(object));
    std::vector<T> values;
    for (Py_ssize_t i = 0; i < PyTuple_Size(items.get()); ++i) {
      values.push_back(Convert<T>::from(PyTuple_GetItem(items.get(), i)));
    }
    return values;
  }
  static Object to(const std::vector<T>& values) {
    Object all(PyList_New(static_cast<Py_ssize_t>(values.size())));
    Py_ssize_t at = 0;
    for (const T& value : values) PyList_SetItem(all.get(), at++, to_python<T>(value).release());
    return all;
  }
};

/// The items of a tuple of exactly as many.
template <class... T>
std::tuple<decltype(Convert<T>::from(nullptr))...> items_as(PyObject* sequence) {
  const Object items(PySequence_Tuple(sequence));
  const auto found = PyTuple_Size(items.get());
  if (found != Py_ssize_t{sizeof...(T)}) {
    raise_type_error(std::to_string(sizeof...(T)) + " values were expected, and " +
                     std::to_string(found) + " given");
  }
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple<decltype(Convert<T>::from(nullptr))...>{
        Convert<T>::from(PyTuple_GetItem(items.get(), I))...};
  }
  (std::index_sequence_for<T...>());
}

template <class... T>
struct Convert<std::tuple<T...>> {
  static std::tuple<T...> from(PyObject* object) { return items_as<T...>(object); }
  static Object to(const std::tuple<T...>& values) {
    return std::apply([](const T&... each) { return tuple_with(each...); }, values);
  }
};

template <class A, class B>
struct Convert<std::pair<A, B>> {
  static std::pair<A, B> from(PyObject* object) {
    return std::make_from_tuple<std::pair<A, B>>(items_as<A, B>(object));
  }
  static Object to(const std::pair<A, B>& pair) { return tuple_with(pair.first, pair.second); }
};

template <>
struct Convert<task::NamedTensor> {
  static task::NamedTensor from(PyObject* object) {
    auto [name, tensor] = items_as<std::string, torch::Tensor>(object);
    return {std::move(name), std::move(tensor)};
  }
  static Object to(const task::NamedTensor& named) { return tuple_with(named.name, named.tensor); }
};

template <class T>
struct Convert<std::map<std::string, T>> {
  static std::map<std::string, T> from(PyObject* object) {
    std::map<std::string, T> values;
    for (auto& [key, value] :
         Object(PyDict_Items(object)).as<std::vector<std::pair<std::string, T>>>()) {
      values.emplace(std::move(key), std::move(value));
    }
    return values;
  }
  static Object to(const std::map<std::string, T>& values) {
    Object all(PyDict_New());
    for (const auto& [key, value] : values) {
      PyDict_SetItemString(all.get(), key.c_str(), to_python(value).get());
    }
    return all;
  }
};

template <class... T>
struct Convert<std::variant<T...>> {
  static Object to(const std::variant<T...>& value) {
    return std::visit([](const auto& held) { return to_python(held); }, value);
  }
};

/// Takes the lock for each call. It throws PythonError.
template <class Result, class... Arguments>
struct Convert<std::function<Result(Arguments...)>> {
  static std::function<Result(Arguments...)> from(PyObject* object) {
    return [held = Held(Object::borrowed(object))](Arguments... arguments) -> Result {
      const Locked locked;
      const Object result = (*held)(arguments...);
      if constexpr (!std::is_void_v<Result>) return result.as<Result>();
    };
  }
};

}  // namespace bimetal::python
