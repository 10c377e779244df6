#include "bimetal/job/deepspeed/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"

namespace bimetal::job::deepspeed {
namespace {

bool not_there(const Json& value) {
  return value.is_null() || value == "auto";
}

/// False, 0, or an object that is not enabled.
bool is_off(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (!value.is_object()) return false;
  const auto enabled = value.find("enabled");
  return value.empty() || (enabled != value.end() && *enabled == false);
}

std::string found(const Json& value) {
  constexpr std::size_t kMost = 40;
  const auto text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > kMost ? text.substr(0, kMost) + "…" : text;
}

std::string joined(const std::string& object, std::string_view key) {
  return object.empty() ? std::string(key) : fmt::format("{}.{}", object, key);
}

void require_known(const Value& object, const std::vector<Key>& keys) {
  std::vector<std::string_view> names;
  for (const Key& key : keys) names.push_back(key.name);
  for (const auto& [name, value] : object.json.items()) {
    if (std::ranges::find(names, name) != names.end()) continue;
    const Value unknown{value, object.origin, joined(object.key, name), object.notify};
    unknown.refuse(fmt::format("is unknown; did you mean '{}'?", nearest_name(name, names)));
  }
}

}  // namespace

void Value::refuse(const std::string& problem) const {
  const auto which = key.empty() ? std::string() : fmt::format("key '{}' ", key);
  throw Error(ErrorCode::InvalidArgument, fmt::format("{}: {}{}", origin, which, problem));
}

void Value::unsupported(const std::string& problem) const {
  throw Error(ErrorCode::Unsupported, fmt::format("{}: key '{}' {}", origin, key, problem));
}

void Value::no_effect(std::string_view why) const {
  if (notify) notify(fmt::format("{}: key '{}' has no effect: {}", origin, key, why));
}

bool Value::flag() const {
  if (!json.is_boolean()) refuse("must be true or false, found " + found(json));
  return json.get<bool>();
}

std::int64_t Value::whole(std::int64_t least) const {
  // 5e8 is a usual way to write a bucket's size.
  constexpr double kMost = 9007199254740992;  // 2⁵³: beyond it not every whole number is a double
  const double value = json.is_number() ? json.get<double>() : std::nan("");
  if (value != std::floor(value) || !(std::abs(value) <= kMost) ||
      value < static_cast<double>(least)) {
    refuse(fmt::format("must be a whole number of at least {}, found {}", least, found(json)));
  }
  return static_cast<std::int64_t>(value);
}

double Value::number(double least) const {
  const double value = json.is_number() ? json.get<double>() : std::nan("");
  if (!(value >= least) || !std::isfinite(value)) {
    refuse(fmt::format("must be a number of at least {:g}, found {}", least, found(json)));
  }
  return value;
}

double Value::number_above(double least) const {
  const double value = json.is_number() ? json.get<double>() : std::nan("");
  if (!(value > least) || !std::isfinite(value)) {
    refuse(fmt::format("must be a number greater than {:g}, found {}", least, found(json)));
  }
  return value;
}

std::string Value::text() const {
  if (!json.is_string()) refuse("must be a text, found " + found(json));
  return json.get<std::string>();
}

std::string Value::one_of(std::span<const std::string_view> words) const {
  const auto word = text();
  if (std::ranges::find(words, word) == words.end()) {
    refuse(fmt::format("must be one of {}, found \"{}\"; did you mean \"{}\"?",
                       fmt::join(words, ", "), word, nearest_name(word, words)));
  }
  return word;
}

std::vector<double> Value::numbers() const {
  const bool fits = json.is_array() && std::ranges::all_of(json, [](const Json& element) {
                      return element.is_number();
                    });
  if (!fits) refuse("must be an array of numbers, found " + found(json));
  return json.get<std::vector<double>>();
}

void read_object(const Value& object, const std::vector<Key>& keys) {
  if (!object.json.is_object()) object.refuse("must be an object, found " + found(object.json));
  require_known(object, keys);
  for (const Key& key : keys) {
    const auto value = object.json.find(key.name);
    if (value == object.json.end() || not_there(*value)) continue;
    key.read({*value, object.origin, joined(object.key, key.name), object.notify});
  }
}

Key without_effect(std::string_view name, std::string_view why) {
  return {name, [why](const Value& value) { value.no_effect(why); }};
}

Key without_effect_if_set(std::string_view name, std::string_view why) {
  return {name, [why](const Value& value) {
            if (!is_off(value.json)) value.no_effect(why);
          }};
}

Key must_be_off(std::string_view name, std::string_view instead) {
  return {name, [instead](const Value& value) {
            if (!is_off(value.json)) value.unsupported(fmt::format("is not possible: {}", instead));
          }};
}

}  // namespace bimetal::job::deepspeed
