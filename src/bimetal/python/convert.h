#pragma once
// What C++ has as Python's objects, and back: numbers, text, tensors, None for what is optional,
// tuples, lists, dictionaries, callables, and objects of ours by reference. With the lock.

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

/// For a type without one of its own: an object of ours, which bimetal._C has in `_object`.
template <class T>
struct Convert {
  static T& from(PyObject* object) {
    const Object kept = Object::borrowed(object).attribute("_object");
    return *static_cast<T*>(in_capsule(kept.get()));
  }
};

template <class T>
Object to_python(const T& value) {
  return Convert<T>::to(value);
}

template <class T>
T Object::as() const {
  return Convert<T>::from(object_);
}

template <class... Arguments>
Object Object::operator()(const Arguments&... arguments) const {
  const Object all = tuple(sizeof...(arguments));
  std::size_t at = 0;
  (set_in_tuple(all, at++, to_python(arguments)), ...);
  return called(object_, all);
}

template <>
struct Convert<Object> {
  static Object from(PyObject* object) { return Object::borrowed(object); }
  static Object to(const Object& object) { return object; }
};

template <>
struct Convert<bool> {
  static bool from(PyObject* object) { return truth_of(object); }
  static Object to(bool value) { return boolean(value); }
};

template <class T>
requires std::is_integral_v<T>
struct Convert<T> {
  static T from(PyObject* object) { return static_cast<T>(integer_of(object)); }
  static Object to(T value) { return integer(static_cast<std::int64_t>(value)); }
};

template <class T>
requires std::is_floating_point_v<T>
struct Convert<T> {
  static T from(PyObject* object) { return static_cast<T>(number_of(object)); }
  static Object to(T value) { return number(value); }
};

template <>
struct Convert<std::string> {
  static std::string from(PyObject* object) { return text_of(object); }
  static Object to(const std::string& value) { return text(value); }
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
    const Object items = tuple_of(object);
    std::vector<T> values;
    for (std::size_t i = 0; i < size_of_tuple(items); ++i) {
      values.push_back(Convert<T>::from(item_of_tuple(items, i)));
    }
    return values;
  }
  static Object to(const std::vector<T>& values) {
    Object all = list(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) set_in_list(all, i, to_python<T>(values[i]));
    return all;
  }
};

/// The items of a tuple of exactly as many.
template <class... T>
std::tuple<decltype(Convert<T>::from(nullptr))...> items_as(const Object& items) {
  const auto found = size_of_tuple(items);
  if (found != sizeof...(T)) {
    raise_type_error(std::to_string(sizeof...(T)) + " values were expected, and " +
                     std::to_string(found) + " given");
  }
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple<decltype(Convert<T>::from(nullptr))...>{
        Convert<T>::from(item_of_tuple(items, I))...};
  }
  (std::index_sequence_for<T...>());
}

template <class... T>
Object tuple_with(const T&... values) {
  Object all = tuple(sizeof...(T));
  std::size_t at = 0;
  (set_in_tuple(all, at++, to_python(values)), ...);
  return all;
}

template <class... T>
struct Convert<std::tuple<T...>> {
  static std::tuple<T...> from(PyObject* object) { return items_as<T...>(tuple_of(object)); }
  static Object to(const std::tuple<T...>& values) {
    return std::apply([](const T&... each) { return tuple_with(each...); }, values);
  }
};

template <class A, class B>
struct Convert<std::pair<A, B>> {
  static std::pair<A, B> from(PyObject* object) {
    return std::make_from_tuple<std::pair<A, B>>(items_as<A, B>(tuple_of(object)));
  }
  static Object to(const std::pair<A, B>& pair) { return tuple_with(pair.first, pair.second); }
};

template <>
struct Convert<task::NamedTensor> {
  static task::NamedTensor from(PyObject* object) {
    auto [name, tensor] = items_as<std::string, torch::Tensor>(tuple_of(object));
    return {std::move(name), std::move(tensor)};
  }
  static Object to(const task::NamedTensor& named) { return tuple_with(named.name, named.tensor); }
};

template <class T>
struct Convert<std::map<std::string, T>> {
  static std::map<std::string, T> from(PyObject* object) {
    std::map<std::string, T> values;
    for (auto& [key, value] :
         Convert<std::vector<std::pair<std::string, T>>>::from(items_of(object).get())) {
      values.emplace(std::move(key), std::move(value));
    }
    return values;
  }
  static Object to(const std::map<std::string, T>& values) {
    Object all = dictionary();
    for (const auto& [key, value] : values) set_in_dictionary(all, key.c_str(), to_python(value));
    return all;
  }
};

template <class... T>
struct Convert<std::variant<T...>> {
  static Object to(const std::variant<T...>& value) {
    return std::visit([](const auto& held) { return to_python(held); }, value);
  }
};

/// Takes the lock for each call. What it throws is PythonError.
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
