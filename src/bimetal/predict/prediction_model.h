#pragma once
// Answers batches of images with a model whose weights may change from one batch to the next.

#include "bimetal/checkpoint/model_description.h"
#include "bimetal/device/place.h"
#include "bimetal/serving/server.h"
#include "bimetal/task/unit.h"

namespace bimetal::predict {

/// A model as it is now, on the device that it computes on.
struct PredictionWeights {
  task::Model model;
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

}  // namespace bimetal::predict
