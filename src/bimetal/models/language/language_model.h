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

// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019).

/// Learned positions, normalisation before each part, GELU by tanh, head tied to the embedding
/// where config.tied. Matrices of blocks are [in, out]. Those that end a residual branch are drawn
/// smaller by √(2·layers), the number of branches. For make_language_model; `config` is sound.
task::Model make_gpt2(const LanguageModelConfig& config, const task::UnitMade& made);

// Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023, section
// 2.2), with grouped-query attention as its second edition has it.

/// Root-mean-square normalisation before each part (Zhang, Sennrich 2019), rotary positions (Su et
/// al. 2021) that turn number i of a head with number i + d/2, SwiGLU (Shazeer 2020), no biases.
/// For make_language_model; `config` is sound.
task::Model make_llama(const LanguageModelConfig& config, const task::UnitMade& made);

}  // namespace bimetal::models
