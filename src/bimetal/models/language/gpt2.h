#pragma once
// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019).

#include "bimetal/models/language/language_config.h"
#include "bimetal/task/unit.h"

namespace bimetal::models {

/// Learned positions, normalisation before each part, GELU by tanh, head tied to the embedding
/// where config.tied. Matrices of blocks are [in, out]. Those that end a residual branch are drawn
/// smaller by √(2·layers), the number of branches. For make_language_model; `config` is sound.
task::Model make_gpt2(const LanguageModelConfig& config, const task::UnitMade& made);

}  // namespace bimetal::models
