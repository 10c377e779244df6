#pragma once
// Answers batches of images with a model whose weights may change from one batch to the next.

#include <memory>

#include "bimetal/models/registry.h"
#include "bimetal/serving/server.h"
#include "bimetal/train/model_description.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {

/// A model as it is now, on the device that it computes on.
struct PredictionWeights {
  std::shared_ptr<models::Classifier> model;
  serving::WeightsVersion version;
};

/// Where the newest weights come from.
class WeightsSource {
 public:
  virtual ~WeightsSource() = default;
  /// Called before each batch, on the thread that computes.
  virtual PredictionWeights newest() = 0;
};

class PredictionModel final : public serving::Model {
 public:
  /// `speed`: emulated, see device::pause_for_speed. `weights` must outlive this.
  PredictionModel(const ModelDescription& description, const Place& place, double speed,
                  WeightsSource& weights);

  serving::ModelFacts facts() const override;

  /// Pixels are normalised as in training. On the CPU a sample's logits are those of the model by
  /// itself, to rounding: kernels may add up in another order for another batch size.
  serving::WeightsVersion answer(std::span<const serving::Samples> parts,
                                 std::span<double> logits) override;

 private:
  torch::Tensor inputs_of(const serving::Samples& samples) const;

  const ModelDescription description_;
  const Place place_;
  const double speed_;
  WeightsSource& weights_;
};

}  // namespace bimetal::train
