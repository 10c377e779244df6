#include "bimetal/train/trained_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/shared_checkpoint.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/optim/merged_update.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/parallel/shard/memory_weights.h"
#include "bimetal/train/gradient_compression.h"
#include "bimetal/train/piece_states.h"

namespace bimetal::train {
namespace {

std::vector<torch::Tensor> tensors_of(const std::vector<parallel::shard::Piece>& pieces) {
  std::vector<torch::Tensor> tensors;
  for (const auto& piece : pieces) tensors.push_back(piece.tensor);
  return tensors;
}

std::vector<std::int64_t> dimensions_of(const std::vector<parallel::shard::Piece>& pieces) {
  std::vector<std::int64_t> dimensions;
  for (const auto& piece : pieces) {
    dimensions.push_back(static_cast<std::int64_t>(piece.shape.size()));
  }
  return dimensions;
}

parallel::shard::Kept kept_of(const job::ZeroConfig& zero) {
  using parallel::shard::Kept;
  if (zero.offload_parameters == "disk") return Kept::OnDisk;
  return zero.offload_parameters == "host" ? Kept::OnHost : Kept::OnDevice;
}

std::string describe(int level, const std::vector<std::int64_t>& bytes) {
  constexpr const char* kKept[] = {"", "the optimizer's state is",
                                   "the optimizer's state and gradients are",
                                   "parameters, gradients and the optimizer's state are"};
  std::vector<std::string> shards;
  for (const auto share : bytes) {
    shards.push_back(fmt::format("{:.1f}", static_cast<double>(share) / (1 << 20)));
  }
  return fmt::format("ZeRO level {}: {} in shards, those of {} MiB of parameters by rank", level,
                     kKept[level], fmt::join(shards, " : "));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const job::JobConfig& job, int ranks,
                                                        const task::JobTask& task,
                                                        const task::Model& model) {
  if (!task.has_optimizer()) {
    return optim::make_optimizer(optimizer_config(job, ranks), model.parameters());
  }
  if (job.zero.level > 0) {
    throw Error(
        ErrorCode::Unsupported,
        "zero.level does not go with an optimizer of the task's own: whether it may be given "
        "parts of tensors is not known; take zero.level = 0, or train.optimizer");
  }
  return task.make_optimizer(model.parameters());
}

}  // namespace

std::vector<double> shard_weights(const job::JobConfig& job, comm::Group group,
                                  const torch::Device& device, std::span<const double> speeds) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (!job.zero.weights.empty()) {
    if (job.zero.weights.size() == ranks) return job.zero.weights;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("zero.shards has {} weights for {} ranks: give one for each",
                            job.zero.weights.size(), ranks));
  }
  if (job.zero.shards == "memory") {
    return parallel::shard::weights_by_memory(
        std::move(group), device, Deadline::after(milliseconds_of(job.parallel.timeout_s)));
  }
  const bool known = std::ranges::any_of(speeds, [](double speed) { return speed > 0; });
  if (job.zero.shards == "speed" && known) return {speeds.begin(), speeds.end()};
  return std::vector<double>(ranks, 1.0);
}

TrainedModel::TrainedModel(const job::JobConfig& job, comm::Group group, const task::JobTask& task,
                           const task::Model& whole,
                           const std::optional<std::filesystem::path>& resume,
                           progress::Observer& observer,
                           const parallel::ReplicatedModelOptions& options,
                           const std::vector<double>& shards)
    : job_(job),
      group_(std::move(group)),
      whole_(whole),
      optimizer_(make_optimizer(job_, group_.size(), task, whole_)),
      state_(checkpoint::starting_point(group_, job_, resume, whole_, *optimizer_, observer)) {
  if (job_.zero.level > 0) {
    cut(shards, observer);
  } else {
    store_ = std::make_shared<parallel::ReplicatedModel>(whole_, group_, options);
  }
}

void TrainedModel::cut(const std::vector<double>& weights, progress::Observer& observer) {
  sharded_ = std::make_shared<parallel::shard::ShardedModel>(
      whole_, group_,
      parallel::shard::ShardedModelOptions{
          .level = static_cast<int>(job_.zero.level),
          .weights = weights,
          .flat_bytes = static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20)),
          .kept = kept_of(job_.zero),
          .folder = job_.zero.offload_path,
          .timeout = milliseconds_of(job_.parallel.timeout_s)});
  store_ = sharded_;
  auto of_pieces = optim::make_shard_optimizer(job_, tensors_of(sharded_->pieces()),
                                               dimensions_of(sharded_->pieces()));
  take_states(*optimizer_, whole_, *sharded_, *of_pieces);
  optimizer_ = std::move(of_pieces);
  if (auto* const merged = dynamic_cast<optim::MergedUpdate*>(optimizer_.get())) {
    merged->set_after_parameter([sharded = sharded_] { sharded->let_go_of_kept(); });
  }
  observer.on_notice(describe(static_cast<int>(job_.zero.level), sharded_->shard_bytes()));
  const bool to_host =
      job_.zero.offload_optimizer == "host" || job_.zero.offload_parameters == "host";
  if (to_host && whole_.parameters().front().is_cpu()) {
    observer.on_notice(
        "zero.offload_optimizer, offload_parameters = \"host\": this rank's device is a CPU, which "
        "keeps everything in the host's memory in any case");
  }
}

void TrainedModel::end_passes() const {
  if (sharded_) sharded_->end_passes();
}

std::filesystem::path TrainedModel::save() {
  if (!sharded_) {
    return checkpoint::save_shared_checkpoint(group_, job_.checkpoint, whole_, *optimizer_, state_);
  }
  const auto learnt = gather_states(*sharded_, *optimizer_);
  const auto values = sharded_->gather([](const auto& piece) { return piece.tensor; }, 0);
  task::ModelState whole(whole_);
  for (const auto& [name, tensor] : values) {
    const auto known = std::ranges::find(whole.parameters, name, &task::NamedTensor::name);
    known->tensor = tensor.detach().set_requires_grad(true);
  }
  // Elsewhere an empty one: rank 0 alone writes.
  const auto optimizer = optim::make_optimizer(
      job_.train, group_.rank() == 0 ? task::tensors_of(whole.parameters)
                                     : std::vector<torch::Tensor>{torch::empty({0})});
  if (group_.rank() == 0) {
    optimizer->state() =
        checkpoint::optimizer_states(learnt, *optimizer, whole, "the ranks' state");
  }
  return checkpoint::save_shared_checkpoint(group_, job_.checkpoint, whole, *optimizer, state_);
}

void TrainedModel::require_finite() const {
  const auto timeout = milliseconds_of(job_.parallel.timeout_s);
  if (!sharded_) {
    return checkpoint::require_finite_parameters(group_, whole_, state_.step, timeout);
  }
  task::ModelState kept;
  for (const auto& piece : sharded_->pieces()) {
    kept.parameters.push_back({piece.parameter, piece.tensor});
  }
  checkpoint::require_finite_parameters(group_, kept, state_.step, timeout);
}

}  // namespace bimetal::train
