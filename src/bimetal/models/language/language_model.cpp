#include "bimetal/models/language/language_model.h"

#include "bimetal/models/language/gpt2.h"
#include "bimetal/models/language/llama.h"

namespace bimetal::models {

task::Model make_language_model(const LanguageModelConfig& config, const task::UnitMade& made) {
  check_language_model(config);
  return config.family == "gpt2" ? make_gpt2(config, made) : make_llama(config, made);
}

}  // namespace bimetal::models
