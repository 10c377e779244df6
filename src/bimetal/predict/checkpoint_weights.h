#pragma once
// The newest checkpoint of a folder that a training may still be writing to, as weights to predict
// with.

#include <chrono>
#include <filesystem>
#include <memory>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/predict/prediction_model.h"

namespace bimetal::predict {

/// Loads the checkpoint, then looks for newer ones on a thread of its own, so that nobody who asks
/// waits for a file. What cannot be read, or is another model's, is logged and passed over: the
/// weights stay what they are.
class CheckpointWeights final : public WeightsSource {
 public:
  /// `path`: a checkpoint, which stays the only one, or a folder of them. Errors of
  /// load_saved_model.
  CheckpointWeights(const std::filesystem::path& path, std::chrono::milliseconds look_every);
  ~CheckpointWeights() override;
  CheckpointWeights(const CheckpointWeights&) = delete;
  CheckpointWeights& operator=(const CheckpointWeights&) = delete;

  const checkpoint::ModelDescription& description() const noexcept;

  /// To be called once, before newest(): where the model is to compute.
  void move_to(const torch::Device& device);

  /// Thread-safe.
  PredictionWeights newest() override;
  /// The checkpoint that they are from. Thread-safe.
  std::filesystem::path origin() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::predict
