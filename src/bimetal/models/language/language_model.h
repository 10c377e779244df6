#pragma once
// Language models as tasks compute them: from tokens to the logits of each next one.

#include <cstdint>
#include <vector>

#include "bimetal/models/language/language_config.h"
#include "bimetal/task/unit.h"

namespace bimetal::models {

// How much a language model computes, by its sizes.

/// Multiplications and additions of each unit's forward for a sample of so many tokens: of matrix
/// products, and of attention as if it looked at all tokens (Narayanan et al., SC 2021, appendix).
/// A backward takes twice as many.
std::vector<double> forward_operations(const LanguageModelConfig& config, std::int64_t tokens);

/// Takes {tokens int64 [b, t]}, t at most config.context, gives {logits [b, t, vocabulary]}. Its
/// units are the embedding, each block, and the final normalisation with the head. Parameters are
/// called, laid out and drawn as those of transformers' GPT2LMHeadModel and LlamaForCausalLM, from
/// torch's default generator, in float32 on the CPU. Dropout (task/dropout.h) is drawn in training
/// alone. Errors: those of check_language_model; from forward InvalidArgument for more tokens than
/// `context` and, on the CPU, for tokens that are not in the vocabulary.
/// `made`: told of each unit.
task::Model make_language_model(
    const LanguageModelConfig& config, const task::UnitMade& made = [](const task::Unit&) {});

}  // namespace bimetal::models
