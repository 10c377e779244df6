#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/models/language/language_model.h"

namespace bimetal::models {
namespace {

constexpr std::int64_t kHeadWidth = 64;  // of all presets

struct Preset {
  std::string_view name;
  std::string_view family;
  std::int64_t layers, width, kv_heads, context;  // kv_heads 0: as many as heads
};

constexpr std::array<Preset, 6> kPresets = {{
    {"gpt2", "gpt2", 12, 768, 0, 1024},
    {"gpt2-medium", "gpt2", 24, 1024, 0, 1024},
    {"gpt2-large", "gpt2", 36, 1280, 0, 1024},
    {"gpt2-xl", "gpt2", 48, 1600, 0, 1024},
    {"llama", "llama", 12, 768, 4, 2048},
    {"llama-1.1b", "llama", 22, 2048, 4, 2048},
}};

constexpr std::int64_t kGpt2Vocabulary = 50257, kLlamaVocabulary = 32000;

// Far above any model that there is; more is a slip of the keyboard, and would overflow products.
constexpr std::int64_t kMostLayers = 10000, kMostWidth = std::int64_t{1} << 20,
                       kMostTokens = std::int64_t{1} << 31;

/// LLaMA: 2/3 of 4 times the width, since its MLP has three matrices and not two (Touvron et al.
/// 2023, section 2.2), in multiples of 256.
std::int64_t usual_hidden(std::string_view family, std::int64_t width) {
  if (family == "gpt2") return 4 * width;
  return (8 * width / 3 + 255) / 256 * 256;
}

std::int64_t usual_heads(std::int64_t width) {
  return std::max<std::int64_t>(1, width / kHeadWidth);
}

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names;
  for (const auto& preset : kPresets) names.push_back(preset.name);
  return names;
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::InvalidArgument, what);
}

void check_size(const char* key, std::int64_t size, std::int64_t most) {
  if (size < 1 || size > most) {
    refuse(fmt::format("model.{} = {} is no number from 1 to {}", key, size, most));
  }
}

void check_heads(const LanguageModelConfig& config) {
  if (config.width % config.heads != 0) {
    refuse(
        fmt::format("model.width = {} cannot be cut into model.heads = {} equal heads: take a "
                    "number of heads that divides it",
                    config.width, config.heads));
  }
  if (config.heads % config.kv_heads != 0) {
    refuse(
        fmt::format("model.heads = {} cannot share model.kv_heads = {} evenly: take a number "
                    "that divides the heads",
                    config.heads, config.kv_heads));
  }
  if (config.family == "gpt2" && config.kv_heads != config.heads) {
    refuse(
        fmt::format("gpt2 has keys and values for each of its {} heads: leave model.kv_heads = "
                    "{} out, or use llama",
                    config.heads, config.kv_heads));
  }
  if (config.family == "llama" && (config.width / config.heads) % 2 != 0) {
    refuse(
        fmt::format("llama turns the numbers of a head in pairs, but model.width = {} in "
                    "model.heads = {} gives {} of them: take another number of heads",
                    config.width, config.heads, config.width / config.heads));
  }
}

}  // namespace

std::vector<std::string> language_model_names() {
  const auto names = preset_names();
  return {names.begin(), names.end()};
}

bool is_language_model(const std::string& name) {
  return std::ranges::any_of(kPresets, [&](const Preset& preset) { return preset.name == name; });
}

LanguageModelConfig language_preset(const std::string& name) {
  const auto* found = std::ranges::find(kPresets, name, &Preset::name);
  if (found == kPresets.end()) {
    const auto names = preset_names();
    refuse(fmt::format("no language model is called '{}'; did you mean '{}'? Known: {}", name,
                       nearest_name(name, names), fmt::join(names, ", ")));
  }
  const auto heads = usual_heads(found->width);
  const bool gpt2 = found->family == "gpt2";
  return {.family = std::string(found->family),
          .layers = found->layers,
          .width = found->width,
          .heads = heads,
          .kv_heads = found->kv_heads > 0 ? found->kv_heads : heads,
          .hidden = usual_hidden(found->family, found->width),
          .context = found->context,
          .vocabulary = gpt2 ? kGpt2Vocabulary : kLlamaVocabulary,
          .tied = gpt2};
}

LanguageModelConfig resized(LanguageModelConfig config, const LanguageModelSizes& sizes) {
  const auto take = [](std::int64_t& to, std::int64_t chosen) {
    if (chosen != 0) to = chosen;
  };
  if (sizes.width != 0 && sizes.width != config.width) {
    config.width = sizes.width;
    config.heads = usual_heads(config.width);
    config.hidden = usual_hidden(config.family, config.width);
  }
  take(config.layers, sizes.layers);
  take(config.heads, sizes.heads);
  take(config.hidden, sizes.hidden);
  take(config.context, sizes.context);
  take(config.vocabulary, sizes.vocabulary);
  const bool fits =
      config.family != "gpt2" && config.kv_heads > 0 && config.heads % config.kv_heads == 0;
  config.kv_heads = sizes.kv_heads != 0 ? sizes.kv_heads : fits ? config.kv_heads : config.heads;
  return config;
}

void check_language_model(const LanguageModelConfig& config) {
  if (config.family != "gpt2" && config.family != "llama") {
    refuse(fmt::format("no family of language models is called '{}'; known are gpt2 and llama",
                       config.family));
  }
  check_size("layers", config.layers, kMostLayers);
  check_size("width", config.width, kMostWidth);
  check_size("heads", config.heads, kMostWidth);
  check_size("kv_heads", config.kv_heads, kMostWidth);
  check_size("hidden", config.hidden, 4 * kMostWidth);
  check_size("context", config.context, kMostTokens);
  check_size("vocabulary", config.vocabulary, kMostTokens);
  check_heads(config);
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    refuse(fmt::format("model.dropout = {} is no part from 0 up to, but not, 1", config.dropout));
  }
  if (!(config.epsilon > 0) || !(config.rope_theta > 0)) {
    refuse(fmt::format("a language model's epsilon ({}) and rope_theta ({}) must be greater than 0",
                       config.epsilon, config.rope_theta));
  }
}

}  // namespace bimetal::models
