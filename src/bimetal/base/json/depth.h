#pragma once
// JSON from files and strangers: brackets within brackets cost a stack where a document is written,
// compared or freed, so that those of any depth are not even read.

namespace bimetal {

/// For nlohmann's Json::parse: leaves out what lies deeper than `deepest` brackets, and says so in
/// `too_deep`, which must outlive the parser.
inline auto json_depth_limit(bool& too_deep, int deepest = 64) {
  return [&too_deep, deepest](int depth, auto /*event*/, auto& /*parsed*/) {
    too_deep |= depth > deepest;
    return depth <= deepest;
  };
}

/// Discarded where `text` is no JSON, or too deep.
template <typename Json, typename Text>
Json parse_json(const Text& text) {
  bool too_deep = false;
  auto json = Json::parse(text, json_depth_limit(too_deep), /*allow_exceptions=*/false);
  return too_deep ? Json(Json::value_t::discarded) : json;
}

}  // namespace bimetal
