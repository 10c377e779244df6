#pragma once
// A small training by any number of ranks, whose every step is prescribed.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/task.h"
#include "bimetal/train/gradient_stages.h"
#include "golden/plain_training.h"

namespace bimetal::golden {

enum class Optimizer { sgd_momentum, adam, adamw, lars, lamb };

/// llama8: of eight heads, and four of keys and values, in place of half as many.
enum class Learns { images, resnet, resnet_batch_norm, tokens, gpt2, llama, llama8 };

constexpr int training_steps = 11;  ///< an epoch has nine

struct TrainingPlan {
  Learns learns = Learns::images;
  double dropout = 0;       ///< of language models
  std::int64_t blocks = 2;  ///< likewise
  torch::ScalarType dtype = torch::kFloat64;
  Optimizer optimizer = Optimizer::sgd_momentum;
  /// Samples per rank of each step, used in turn; all of one sum, the global batch. For tokens:
  /// parts of its weight. Its width is the world size or, with tensor ranks, the number of
  /// replicas.
  std::vector<std::vector<std::int64_t>> shares = {};
  int steps = training_steps;
  std::int64_t micro_batch = 1000;  ///< samples per backward pass at most
  train::UpdateOptions update = {};
  std::string recompute = "none";  ///< as train.recompute
  int zero_level = 0;
  std::vector<double> shards = {};  ///< above level 0: weights of the ranks' shards
  bool copies = false;              ///< above level 0: each shard on a second rank, too
  bool update_in_backward = false;  ///< as zero.update; of level 3
  /// As zero.offload_optimizer, by rank in turn; above level 0, of adam and adamw.
  std::vector<std::string> offload = {"none"};
  std::vector<double> tensor = {};  ///< weights of the ranks that have a replica's tensors in parts
  parallel::PartWeights stage_tensor = {};  ///< or by stage, where it has stages
  parallel::tensor::Between between = parallel::tensor::Between::whole;  ///< of these ranks
  /// Parameters of level 3, by rank in turn.
  std::vector<parallel::shard::Kept> kept = {parallel::shard::Kept::OnDevice};
  parallel::shard::WholeForm form = {};  ///< above level 0
  precision::Precision precision = precision::Precision::float32;
  /// Stages and replicas; where it has stages, shares are by replica, or where these are uneven the
  /// whole batch is one.
  parallel::MeshShape mesh = {};
  std::vector<std::int64_t> cuts = {};  ///< units that stages, or their pieces, begin with
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;                   ///< pieces per stage
  std::int64_t micro_batches = 0;   ///< of a share; 0: as many as micro_batch asks for
  std::vector<double> speeds = {};  ///< as train::StageOptions has them
  bool learns_speeds = false;
  /// Called on each rank with its group; empty: no islands.
  c10d::FormIsland form_island = {};
  /// What each rank has for tensors between stages; empty: they go through the host.
  std::function<c10d::VendorLibrary(int rank)> vendor = {};
};

/// Its mesh, with the parts of tensors, and by stage the weights of these.
parallel::MeshShape shape_of(const TrainingPlan& plan);
parallel::PartWeights part_weights_of(const TrainingPlan& plan);

/// The value of `rank`, if ranks have the values in turn.
template <typename Value>
const Value& of_rank(const std::vector<Value>& in_turn, int rank) {
  return in_turn.at(static_cast<std::size_t>(rank) % in_turn.size());
}

/// Trains ImageTask, TokenTask or LanguageTask by train::TrainingStep, reshuffled each epoch, for
/// plan.steps steps. Data and start are the same in every call; ranks but the first start from
/// elsewhere and have to be brought there.
TrainingResult train(const TrainingPlan& plan);

/// The whole model's tensors, from those of each rank at the end, in that order and undefined where
/// it has none. Tensors of several ranks must be the same on all of them.
std::vector<torch::Tensor> put_together(const TrainingPlan& plan,
                                        const std::vector<std::vector<torch::Tensor>>& by_rank);

/// The task of such a plan.
std::unique_ptr<task::Task> make_task(const TrainingPlan& plan);

/// The same by one device that does nothing of train/ and parallel/: of a plan it takes what is
/// learnt, and by which steps.
TrainingResult train_plainly(const TrainingPlan& plan);

}  // namespace bimetal::golden
