#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "bimetal/serving/http/http_front.h"

namespace bimetal::serving {
namespace {

using Json = nlohmann::json;

[[noreturn]] void refuse_images(const std::string& what) {
  throw Error(ErrorCode::InvalidArgument, what);
}

std::string shape_text(const ModelFacts& facts) {
  return fmt::format("[n][{}][{}][{}]", facts.channels, facts.height, facts.width);
}

/// How deep lists are nested, by their first elements.
int depth_of(const Json& value) {
  int depth = 0;
  for (const Json* inner = &value; inner->is_array() && depth < 8; ++depth) {
    if (inner->empty()) return depth + 1;
    inner = &inner->front();
  }
  return depth;
}

/// Walks lists of the shape sizes[0] × sizes[1] × … to their numbers.
template <typename Take>
void walk(const Json& value, std::span<const std::int64_t> sizes, const ModelFacts& facts,
          const Take& take) {
  if (sizes.empty()) return take(value);
  if (!value.is_array() || std::ssize(value) != sizes.front()) {
    refuse_images(fmt::format("the model '{}' takes images {}: a list has another length there",
                              facts.model, shape_text(facts)));
  }
  for (const auto& inner : value) walk(inner, sizes.subspan(1), facts, take);
}

std::byte pixel_of(const Json& number) {
  if (number.is_number_integer()) {
    const auto value = number.get<std::int64_t>();
    if (value >= 0 && value <= 255) return static_cast<std::byte>(value);
  }
  refuse_images(
      "pixels are whole numbers from 0 to 255; with \"normalised\": true, what the model takes");
}

void append(std::vector<std::byte>& values, double value) {
  std::array<std::byte, sizeof value> bytes;
  std::memcpy(bytes.data(), &value, sizeof value);
  values.insert(values.end(), bytes.begin(), bytes.end());
}

std::shared_ptr<Request> from_lists(const Json& images, bool normalised, const ModelFacts& facts) {
  const int depth = depth_of(images);
  if (depth < 2 || depth > 4 || (depth < 4 && facts.channels != 1)) {
    refuse_images(fmt::format("\"images\" is a list {}{}", shape_text(facts),
                              facts.channels == 1 ? ", without the channel, or one image" : ""));
  }
  std::vector<std::int64_t> sizes = {facts.height, facts.width};
  if (depth == 4) sizes.insert(sizes.begin(), facts.channels);
  if (depth > 2) sizes.insert(sizes.begin(), std::ssize(images));
  auto request = std::make_shared<Request>();
  request->samples = depth > 2 ? std::ssize(images) : 1;
  request->dtype = normalised ? comm::DType::float64 : comm::DType::uint8;
  walk(images, sizes, facts, [&](const Json& number) {
    if (!normalised) return request->values.push_back(pixel_of(number));
    if (!number.is_number()) refuse_images("\"images\" has something that is no number");
    append(request->values, number.get<double>());
  });
  return request;
}

/// Nothing for text that is no base64 (RFC 4648, section 4).
std::optional<std::vector<std::byte>> base64_bytes(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  const auto padding = text.ends_with("==") ? 2u : text.ends_with('=') ? 1u : 0u;
  text.remove_suffix(padding);
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const auto digit = kDigits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = (bits << 6 | static_cast<std::uint32_t>(digit)) & 0xffff;
    held += 6;
    if (held < 8) continue;
    held -= 8;
    bytes.push_back(static_cast<std::byte>(bits >> held & 0xff));
  }
  return bytes;
}

std::shared_ptr<Request> from_base64(const Json& text, const ModelFacts& facts) {
  auto bytes = text.is_string() ? base64_bytes(text.get_ref<const std::string&>()) : std::nullopt;
  if (!bytes) refuse_images("\"images_base64\" is no base64");
  const auto each = static_cast<std::size_t>(facts.values_per_sample());
  if (bytes->empty() || bytes->size() % each != 0) {
    refuse_images(fmt::format(
        "an image of the model '{}' is {} bytes ({}x{}x{}); {} are no whole number of them",
        facts.model, each, facts.channels, facts.height, facts.width, bytes->size()));
  }
  auto request = std::make_shared<Request>();
  request->samples = static_cast<std::int64_t>(bytes->size() / each);
  request->values = std::move(*bytes);
  return request;
}

}  // namespace

std::shared_ptr<Request> images_of(const Json& asked, const ModelFacts& facts) {
  if (facts.context > 0) {
    refuse_images(fmt::format("'{}' is a language model: POST /v1/generate", facts.model));
  }
  const auto lists = asked.find("images"), base64 = asked.find("images_base64");
  if ((lists == asked.end()) == (base64 == asked.end())) {
    refuse_images("give \"images\" or \"images_base64\"");
  }
  if (base64 != asked.end()) return from_base64(*base64, facts);
  const auto normalised = asked.find("normalised");
  return from_lists(*lists, normalised != asked.end() && *normalised == true, facts);
}

std::string predictions_json(const Request& request, std::int64_t classes) {
  nlohmann::ordered_json json = {{"predictions", nlohmann::ordered_json::array()},
                                 {"step", request.predicted.weights.newest}};
  std::span<const double> rest(request.predicted.logits);
  for (std::int64_t sample = 0; sample < request.samples; ++sample) {
    const auto logits = rest.first(static_cast<std::size_t>(classes));
    rest = rest.subspan(logits.size());
    const auto largest = std::ranges::max_element(logits);
    std::vector<double> probabilities;
    double sum = 0;
    for (const double logit : logits) sum += probabilities.emplace_back(std::exp(logit - *largest));
    for (double& probability : probabilities) probability /= sum;
    const auto best = largest - logits.begin();
    json["predictions"].push_back({{"class", best},
                                   {"probability", probabilities[static_cast<std::size_t>(best)]},
                                   {"probabilities", probabilities}});
  }
  return json.dump() + "\n";
}

}  // namespace bimetal::serving
