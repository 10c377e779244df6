#pragma once
// The newest checkpoint of a folder that a training may still be writing to, as weights to predict
// with.

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/shard_plan.h"
#include "bimetal/predict/predict.h"

namespace bimetal::predict {

/// Loads the checkpoint, then looks for newer ones on a thread of its own, so that nobody who asks
/// waits for a file. A checkpoint that cannot be read, or is another model's, is logged and passed
/// over: the weights stay as they are.
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

// The parameters of a running job, fetched from its servers as a worker fetches them, by a reader
// that takes no part in the training.

class JobWeights final : public WeightsSource {
 public:
  /// How to reach the servers (Join and timeout filled in), asked each time when a connection is to
  /// be made; and the version of the parameters at the coordinator.
  using Options = std::function<parallel::server::ClientOptions()>;
  using Version = std::function<std::uint64_t()>;

  JobWeights(const checkpoint::ModelDescription& description, parallel::server::ShardPlan plan,
             Options options, Version version);
  ~JobWeights() override;

  /// Fetches newer weights, but spends no more than a tenth of the time on it. All servers give the
  /// same update if they can, as to workers. Otherwise the version tells which updates they are of.
  /// Errors of Client.
  PredictionWeights newest() override;

 private:
  void connect();
  void pull();

  const parallel::server::ShardPlan plan_;
  const Options options_;
  const Version version_at_coordinator_;
  const task::Model model_;
  serving::WeightsVersion version_;
  std::chrono::steady_clock::time_point rest_until_{};
  std::unique_ptr<parallel::server::Client> client_;
};

}  // namespace bimetal::predict
