#pragma once
// Text from a language model, token by token.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "bimetal/task/past.h"
#include "bimetal/task/unit.h"

namespace bimetal::predict {

struct Sampling {
  std::int64_t tokens = 200;  ///< how many are drawn
  double temperature = 1.0;   ///< logits are divided by it; 0: always the likeliest token
  std::int64_t top_k = 0;     ///< > 0: only so many of the likeliest (and their equals) are drawn
  std::uint64_t seed = 0;     ///< of the draws
};

/// A text that grows by what a model foretells. Use from one thread.
class Continuation {
 public:
  /// The same as for generate(). The model's parameters must not change meanwhile.
  Continuation(task::Model model, const torch::Device& device, std::int64_t context,
               std::vector<std::int64_t> prompt, const Sampling& sampling);

  /// The next token.
  std::int64_t next();

 private:
  torch::Tensor logits();
  torch::Tensor last_logits(std::int64_t count) const;

  const task::Model model_;
  const torch::Device device_;
  const std::int64_t context_;
  const Sampling sampling_;
  torch::Generator generator_;
  std::vector<std::int64_t> tokens_;
  std::optional<task::Past> past_;  ///< none: the model has none, or its context is full
};

/// What follows `prompt`: each token is drawn from what the model, on `device` in evaluation mode,
/// foretells after the last `context` tokens before it. Draws are made on the CPU in float64, so
/// that equal logits give equal tokens on every device. A model that remembers what came before
/// (task/past.h) is given each token once, until there are `context` of them: from then on all
/// positions change with every token. `tell` gets each token as it comes. Errors:
/// InvalidArgument for an empty prompt and for settings that cannot be; NotFinite if the model
/// gives NaN or infinity; those of the model.
std::vector<std::int64_t> generate(const task::Model& model, const torch::Device& device,
                                   std::int64_t context, const std::vector<std::int64_t>& prompt,
                                   const Sampling& sampling,
                                   const std::function<void(std::int64_t token)>& tell = {});

}  // namespace bimetal::predict
