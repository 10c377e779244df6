#pragma once
// A message's fields, listed once for writing and reading:
//
//   template <typename Wire>
//   void fields(Wire& wire, Point& point) { wire(point.x, point.y); }
//
//   FieldWriter out;                FieldReader in(bytes);
//   fields(out, point);             fields(in, point);
//   send(std::move(out).take());    in.expect_end();

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"

namespace bimetal {

/// Truths and enumerations are bytes, other whole numbers i64, numbers f64; before a list comes how
/// many there are.
class FieldWriter {
 public:
  template <typename... Values>
  void operator()(const Values&... values) {
    (put(values), ...);
  }
  /// A list, of each of which `of_one` lists the fields.
  template <typename Value, typename OfOne>
  void each(std::vector<Value>& values, const OfOne& of_one) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (auto& value : values) of_one(value);
  }
  std::vector<std::byte> take() && { return std::move(out_).take(); }

 private:
  template <typename Value>
  void put(const Value& value) {
    if constexpr (std::is_same_v<Value, bool> || std::is_enum_v<Value>) {
      out_.u8(static_cast<std::uint8_t>(value));
    } else if constexpr (std::is_floating_point_v<Value>) {
      out_.f64(value);
    } else {
      out_.i64(static_cast<std::int64_t>(value));
    }
  }
  void put(const std::string& text) { out_.string(text); }
  template <typename Value>
  void put(const std::vector<Value>& values) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const auto& value : values) put(value);
  }

  WireWriter out_;
};

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : in_(bytes) {}

  template <typename... Values>
  void operator()(Values&... values) {
    (get(values), ...);
  }
  template <typename Value, typename OfOne>
  void each(std::vector<Value>& values, const OfOne& of_one) {
    resize(values);
    for (auto& value : values) of_one(value);
  }
  void expect_end() const { in_.expect_end(); }

 private:
  template <typename Value>
  void get(Value& value) {
    if constexpr (std::is_same_v<Value, bool> || std::is_enum_v<Value>) {
      value = static_cast<Value>(in_.u8());
    } else if constexpr (std::is_floating_point_v<Value>) {
      value = static_cast<Value>(in_.f64());
    } else {
      value = static_cast<Value>(in_.i64());
    }
  }
  void get(std::string& text) { text = in_.string(); }
  template <typename Value>
  void get(std::vector<Value>& values) {
    resize(values);
    for (auto& value : values) get(value);
  }
  /// A length is believed only as far as there are bytes.
  template <typename Value>
  void resize(std::vector<Value>& values) {
    const auto count = in_.u32();
    if (count > in_.remaining()) throw Error(ErrorCode::CorruptData, "a list's length is wrong");
    values.resize(count);
  }

  WireReader in_;
};

}  // namespace bimetal
