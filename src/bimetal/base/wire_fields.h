#pragma once
// A message's fields, listed once for writing and reading:
//
//   template <typename Wire>
//   void fields(Wire& wire, Point& point) { wire(point.x, point.y, point.neighbours); }
//
//   send(write_fields(point));
//   const auto point = read_fields<Point>(bytes);
//
// `fields` stands in the namespace of the structure, where its neighbours' lists find it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"

namespace bimetal {

/// Truths and enumerations are bytes, other whole numbers as wide as their type, numbers f64.
/// A list begins with its length (u32), an optional value with whether it is there.
class FieldWriter {
 public:
  template <typename... Values>
  void operator()(const Values&... values) {
    (put(values), ...);
  }
  /// A list. `of_one` lists the fields of each item.
  template <typename Value, typename OfOne>
  void each(std::vector<Value>& values, const OfOne& of_one) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (auto& value : values) of_one(value);
  }
  /// An enumeration from `first` to `last`.
  template <typename Enum>
  void within(Enum /*first*/, const Enum& value, Enum /*last*/) {
    put(value);
  }
  void raw(std::span<const std::byte> bytes) { out_.raw(bytes); }
  std::vector<std::byte> take() && { return std::move(out_).take(); }

 private:
  template <typename Value>
  void put(const Value& value) {
    if constexpr (std::is_same_v<Value, bool> || std::is_enum_v<Value>) {
      out_.u8(static_cast<std::uint8_t>(value));
    } else if constexpr (std::is_floating_point_v<Value>) {
      out_.f64(value);
    } else if constexpr (std::is_integral_v<Value>) {
      if constexpr (sizeof(Value) == 1) out_.u8(static_cast<std::uint8_t>(value));
      if constexpr (sizeof(Value) == 2) out_.u16(static_cast<std::uint16_t>(value));
      if constexpr (sizeof(Value) == 4) out_.u32(static_cast<std::uint32_t>(value));
      if constexpr (sizeof(Value) == 8) out_.u64(static_cast<std::uint64_t>(value));
    } else {
      fields(*this, const_cast<Value&>(value));  // which a writer leaves as it is
    }
  }
  void put(const std::string& text) { out_.string(text); }
  template <typename First, typename Second>
  void put(const std::pair<First, Second>& both) {
    (*this)(both.first, both.second);
  }
  template <typename Value>
  void put(const std::vector<Value>& values) {
    put_all(values);
  }
  template <typename Key, typename Value>
  void put(const std::map<Key, Value>& values) {
    put_all(values);
  }
  template <typename Value>
  void put(const std::optional<Value>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <typename Values>
  void put_all(const Values& values) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const auto& value : values) put(value);
  }

  WireWriter out_;
};

/// Reads what FieldWriter wrote. Error(CorruptData) for what does not fit.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : in_(bytes) {}

  template <typename... Values>
  void operator()(Values&... values) {
    (get(values), ...);
  }
  template <typename Value, typename OfOne>
  void each(std::vector<Value>& values, const OfOne& of_one) {
    values.clear();
    for (auto left = in_.u32(); left > 0; --left) of_one(values.emplace_back());
  }
  template <typename Enum>
  void within(Enum first, Enum& value, Enum last) {
    get(value);
    if (value >= first && value <= last) return;
    throw Error(ErrorCode::CorruptData, "a message names a kind that there is not");
  }
  /// As many as there is room for.
  void raw(std::span<std::byte> bytes) {
    const auto found = in_.raw(bytes.size());
    std::copy(found.begin(), found.end(), bytes.begin());
  }
  void expect_end() const { in_.expect_end(); }

 private:
  template <typename Value>
  void get(Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      value = in_.u8() != 0;
    } else if constexpr (std::is_enum_v<Value>) {
      value = static_cast<Value>(in_.u8());
    } else if constexpr (std::is_floating_point_v<Value>) {
      value = static_cast<Value>(in_.f64());
    } else if constexpr (std::is_integral_v<Value>) {
      if constexpr (sizeof(Value) == 1) value = static_cast<Value>(in_.u8());
      if constexpr (sizeof(Value) == 2) value = static_cast<Value>(in_.u16());
      if constexpr (sizeof(Value) == 4) value = static_cast<Value>(in_.u32());
      if constexpr (sizeof(Value) == 8) value = static_cast<Value>(in_.u64());
    } else {
      fields(*this, value);
    }
  }
  void get(std::string& text) { text = in_.string(); }
  template <typename First, typename Second>
  void get(std::pair<First, Second>& both) {
    (*this)(both.first, both.second);
  }
  /// A made-up length allocates nothing: items of a list are read one by one.
  template <typename Value>
  void get(std::vector<Value>& values) {
    values.clear();
    for (auto left = in_.u32(); left > 0; --left) {
      Value value{};
      get(value);
      values.push_back(std::move(value));
    }
  }
  template <typename Key, typename Value>
  void get(std::map<Key, Value>& values) {
    values.clear();
    for (auto left = in_.u32(); left > 0; --left) {
      Key key{};
      get(key);
      get(values[key]);
    }
  }
  template <typename Value>
  void get(std::optional<Value>& value) {
    bool there = false;
    get(there);
    if (there) get(value.emplace());
  }

  WireReader in_;
};

/// Bytes as a store or a pipe takes them.
inline std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The bytes of a message by its fields(), or of several as one.
template <typename... Parts>
std::vector<std::byte> write_fields(const Parts&... parts) {
  FieldWriter out;
  out(parts...);
  return std::move(out).take();
}

/// Error(CorruptData) unless that is all there is.
template <typename... Parts>
void read_fields_into(std::span<const std::byte> bytes, Parts&... parts) {
  FieldReader in(bytes);
  in(parts...);
  in.expect_end();
}

template <typename Message>
Message read_fields(std::span<const std::byte> bytes) {
  Message message;
  read_fields_into(bytes, message);
  return message;
}

}  // namespace bimetal
