#pragma once
// Predictions of a trained model for each sample of a set, and of several models together.
//
// The output of a model in training for one sample, for people to look at.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>

#include "bimetal/checkpoint/model_file.h"
#include "bimetal/device/device.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/serving/server.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"

namespace bimetal::predict {

// Answers batches of images with a model whose weights may change from one batch to the next.

/// A model as it is now, on the device that it computes on.
struct PredictionWeights {
  task::Model model;
  serving::WeightsVersion version;
};

/// A source of the newest weights.
class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  /// Called before each batch, on the thread that computes.
  virtual PredictionWeights newest() = 0;
};

class PredictionModel final : public serving::Model {
 public:
  /// `speed`: emulated, see device::pause_for_speed. `weights` must outlive this.
  PredictionModel(const checkpoint::ModelDescription& description, const device::Place& place,
                  double speed, WeightsSource& weights);

  serving::ModelFacts facts() const override;

  /// Pixels are normalised as in training. On the CPU a sample's logits are those of the model by
  /// itself, to rounding: kernels may add up in another order for another batch size.
  serving::WeightsVersion answer(std::span<const serving::Samples> parts,
                                 std::span<double> logits) override;

 private:
  torch::Tensor inputs_of(const serving::Samples& samples) const;

  const checkpoint::ModelDescription description_;
  const device::Place place_;
  const double speed_;
  WeightsSource& weights_;
};

/// The class probabilities of a classification task, whose model's first output is logits [b,
/// classes]: their softmax, float64 [N, classes] on the CPU, in the order of the evaluation data.
/// The softmax is taken in double precision, whatever the model's own, so that their order is the
/// logits'. Leaves the model in evaluation mode. Thread-compatible.
torch::Tensor predict(const task::Task& task, const task::Model& model,
                      const EvaluateOptions& options);

/// The targets of such a task's evaluation data: int64 [N].
torch::Tensor labels_of(const task::Task& task);

/// Accuracy, and mean cross-entropy, of `probabilities` [N, classes] against `labels` int64 [N].
/// With predict()'s the accuracy is the one that evaluate() gives the same model.
progress::Evaluation score(const torch::Tensor& probabilities, const torch::Tensor& labels);

/// A sample of `data`, which `draw` chooses. A language model goes on with its begin. `model` is
/// whole, on `device`, and as `description` says; it is in training mode afterwards, and no random
/// numbers are drawn that training draws.
progress::Sample look_at_sample(const task::Task& task,
                                const checkpoint::ModelDescription& description,
                                const task::Dataset& data, const task::Model& model,
                                const torch::Device& device, std::uint64_t draw);

}  // namespace bimetal::predict
