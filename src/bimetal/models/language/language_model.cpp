#include "bimetal/models/language/language_model.h"

namespace bimetal::models {

std::vector<double> forward_operations(const LanguageModelConfig& config, std::int64_t tokens) {
  const auto t = static_cast<double>(tokens), width = static_cast<double>(config.width);
  const auto heads = static_cast<double>(config.heads), kv = static_cast<double>(config.kv_heads);
  const double attention = 2 * width * width + 2 * width * width * kv / heads;
  const double matrices_of_mlp = config.family == "llama" ? 3 : 2;
  const double mlp = matrices_of_mlp * width * static_cast<double>(config.hidden);
  const double block = 2 * t * (attention + mlp) + 4 * t * t * width;
  std::vector<double> units = {0};  // the embedding looks its rows up
  units.insert(units.end(), static_cast<std::size_t>(config.layers), block);
  units.push_back(2 * t * width * static_cast<double>(config.vocabulary));
  return units;
}

task::Model make_language_model(const LanguageModelConfig& config, const task::UnitMade& made) {
  check_language_model(config);
  return config.family == "gpt2" ? make_gpt2(config, made) : make_llama(config, made);
}

}  // namespace bimetal::models
