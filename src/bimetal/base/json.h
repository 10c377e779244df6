#pragma once
// JSON where little of it is needed: text as a JSON string, for the few documents that the core
// writes by itself; and a limit to the depth of JSON from files and strangers. Nested brackets
// use the stack when a document is written, compared or freed, so documents that are too deep are
// not read.

#include <string>
#include <string_view>

namespace bimetal {

/// `text` between quotes, escaped (RFC 8259, section 7). Bytes that are no UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

constexpr int kDeepestJson = 64;  ///< of what people and programs write

/// For nlohmann's Json::parse: leaves out values deeper than `deepest` brackets, and says so in
/// `too_deep`, which must outlive the parser.
inline auto json_depth_limit(bool& too_deep, int deepest = kDeepestJson) {
  return [&too_deep, deepest](int depth, auto /*event*/, auto& /*parsed*/) {
    too_deep |= depth > deepest;
    return depth <= deepest;
  };
}

/// Discarded where `text` is no JSON, or too deep.
template <typename Json, typename Text>
Json parse_json(const Text& text, int deepest = kDeepestJson) {
  bool too_deep = false;
  auto json = Json::parse(text, json_depth_limit(too_deep, deepest), /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace bimetal
