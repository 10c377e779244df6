#pragma once
// Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023, section
// 2.2), with grouped-query attention as its second edition has it.

#include "bimetal/models/language/language_config.h"
#include "bimetal/task/unit.h"

namespace bimetal::models {

/// Root-mean-square normalisation before each part (Zhang, Sennrich 2019), rotary positions (Su et
/// al. 2021) that turn number i of a head with number i + d/2, SwiGLU (Shazeer 2020), no biases.
/// For make_language_model; `config` is sound.
task::Model make_llama(const LanguageModelConfig& config, const task::UnitMade& made);

}  // namespace bimetal::models
