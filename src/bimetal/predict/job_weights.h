#pragma once
// The parameters of a running job, fetched from its servers as a worker fetches them, by a reader
// that takes no part in the training.

#include <chrono>
#include <functional>
#include <memory>

#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/shard_plan.h"
#include "bimetal/predict/prediction_model.h"

namespace bimetal::predict {

class JobWeights final : public WeightsSource {
 public:
  /// How to reach the servers (Join and timeout filled in), asked each time when a connection is to
  /// be made; and the version of the parameters at the coordinator.
  using Options = std::function<parallel::server::ClientOptions()>;
  using Version = std::function<std::uint64_t()>;

  JobWeights(const checkpoint::ModelDescription& description, parallel::server::ShardPlan plan,
             Options options, Version version);
  ~JobWeights() override;

  /// Fetches what is newer than what is here, but spends no more than a tenth of the time on it.
  /// The same update on all servers where they can give that, as to workers; else the version tells
  /// of which they are. Errors of Client.
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
