#pragma once
// Language models as tasks compute them: from tokens to the logits of each next one.
//
// Which language model: its family and its sizes, as published or as one has chosen.

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::models {

struct LanguageModelConfig {
  std::string family;         ///< "gpt2" or "llama"
  std::int64_t layers = 0;    ///< blocks
  std::int64_t width = 0;     ///< of what flows between blocks
  std::int64_t heads = 0;     ///< of attention; divides width
  std::int64_t kv_heads = 0;  ///< heads of keys and values; divides heads. gpt2: as many as heads
  std::int64_t hidden = 0;    ///< width within a block's MLP
  std::int64_t context = 0;   ///< most tokens that it looks at
  std::int64_t vocabulary = 0;
  double dropout = 0;       ///< in training: of embeddings, attention's weights, residual branches
  double epsilon = 1e-5;    ///< of its normalisations
  double rope_theta = 1e4;  ///< llama: base of the rotary embedding's wavelengths
  bool tied = false;        ///< the head is the embedding
  bool operator==(const LanguageModelConfig&) const = default;
};

/// The sizes of a model that a user has chosen; 0: the size that `resized` finds.
struct LanguageModelSizes {
  std::int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, hidden = 0, context = 0,
               vocabulary = 0;
};

/// "gpt2" (124M parameters), "gpt2-medium" (355M), "gpt2-large" (774M), "gpt2-xl" (1.5B; Radford et
/// al. 2019), "llama" (as many blocks and as wide as gpt2), "llama-1.1b" (as TinyLlama has it,
/// Zhang et al. 2024).
std::vector<std::string> language_model_names();

bool is_language_model(const std::string& name);

/// A model of that name without dropout. Error(InvalidArgument) gives the nearest known name.
LanguageModelConfig language_preset(const std::string& name);

/// `config` with other sizes. Sizes that are left out are config's, except those that depend on a
/// new width: heads are one for every 64 of it; hidden is 4 times as much for gpt2, and 8/3 times
/// as much for llama, in multiples of 256; kv_heads are config's where they divide the heads, else
/// the heads. Not checked.
LanguageModelConfig resized(LanguageModelConfig config, const LanguageModelSizes& sizes);

/// Error(InvalidArgument) names the first size that cannot be, by its key in the job file, and says
/// what could.
void check_language_model(const LanguageModelConfig& config);

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
