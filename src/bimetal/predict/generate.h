#pragma once
// Text from a language model, token by token.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "bimetal/checkpoint/model_file.h"
#include "bimetal/device/device.h"
#include "bimetal/predict/predict.h"
#include "bimetal/predict/sampling.h"
#include "bimetal/serving/server.h"
#include "bimetal/task/past.h"
#include "bimetal/task/unit.h"

namespace bimetal::predict {

// A language model for serving/, whose weights may be replaced by newer ones.

class LanguageWriter final : public serving::Writer {
 public:
  /// `description` of a language model, `weights` as that says, on `place`'s device; they must
  /// outlive it. `speed` as of a worker.
  LanguageWriter(const checkpoint::ModelDescription& description, const device::Place& place,
                 double speed, WeightsSource& weights);

  serving::ModelFacts facts() const override;
  /// With the newest weights, which the text keeps.
  std::unique_ptr<serving::Text> begin(const serving::TextRequest& wanted) override;

 private:
  const checkpoint::ModelDescription description_;
  const device::Place place_;
  const double speed_;
  WeightsSource& weights_;
};

/// Predicts the next tokens of a text: a model here, or this rank's part of one. Use from one
/// thread.
class Foretelling {
 public:
  virtual ~Foretelling() = default;
  /// Logits [vocabulary] of the token behind `tokens`, int64 [1, t] on the CPU, which go on from
  /// this thread's task::Past where it has one. Undefined where another rank draws the token.
  virtual torch::Tensor logits(const torch::Tensor& tokens) = 0;
  /// After such a pass: whether the model has put anything into its past, this part or another.
  virtual bool remembers(const task::Past& past) = 0;
  /// The token that the text goes on with: the one drawn here, or that of the rank which draws.
  virtual std::int64_t agree(std::optional<std::int64_t> drawn) = 0;
};

/// By a model on `device`, whole and in evaluation mode.
std::shared_ptr<Foretelling> foretold_by(task::Model model, const torch::Device& device);

/// A text that grows by a model's predictions. Use from one thread.
class Continuation {
 public:
  /// The same as for generate(). The model must not change meanwhile. All ranks that compute a
  /// model together make the same calls.
  Continuation(std::shared_ptr<Foretelling> by, std::int64_t context,
               std::vector<std::int64_t> prompt, const Sampling& sampling);

  /// The next token.
  std::int64_t next();

 private:
  torch::Tensor logits();

  const std::shared_ptr<Foretelling> by_;
  const std::int64_t context_;
  const Sampling sampling_;
  torch::Generator generator_;
  std::vector<std::int64_t> tokens_;
  std::optional<task::Past> past_;  ///< none: the model has none, or its context is full
};

/// Continues `prompt`: each token is drawn from the prediction of `by` after the last `context`
/// tokens before it. Draws are made on the CPU in float64, so that equal logits give equal tokens
/// on every device. A model that remembers what came before (task/past.h) is given each token once,
/// until there are `context` of them: from then on all positions change with every token. `tell`
/// gets each token as it comes. Errors: InvalidArgument for an empty prompt and for settings that
/// cannot be; NotFinite if the model gives NaN or infinity; those of the model.
std::vector<std::int64_t> generate(std::shared_ptr<Foretelling> by, std::int64_t context,
                                   const std::vector<std::int64_t>& prompt,
                                   const Sampling& sampling,
                                   const std::function<void(std::int64_t token)>& tell = {});

}  // namespace bimetal::predict
