#include "bimetal/train/trained_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/shared_checkpoint.h"
#include "bimetal/checkpoint/slices/save_slices.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/device/device.h"
#include "bimetal/optim/merged_update.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/train/gradient_compression.h"
#include "bimetal/train/piece_states.h"

namespace bimetal::train {
namespace {

std::uint64_t free_memory(const torch::Device& device) {
  for (const auto& info : device::enumerate_devices()) {
    if (info.device.type() == device.type() && info.device.index() == device.index()) {
      return info.memory_free_bytes;
    }
  }
  return 0;
}

std::vector<double> weights_by_memory(comm::Group group, const torch::Device& device,
                                      Deadline deadline) {
  const std::vector<std::uint64_t> mine = {free_memory(device)};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  const auto bytes = [](const auto& numbers) {
    return comm::ConstBuffer{numbers.data(), numbers.size() * sizeof(std::uint64_t),
                             comm::DType::uint8};
  };
  group
      .all_gather(bytes(mine), {all.data(), all.size() * sizeof(std::uint64_t), comm::DType::uint8},
                  deadline)
      .wait();
  // Where one cannot tell, equal parts are no worse a guess than any other.
  if (std::ranges::find(all, std::uint64_t{0}) != all.end()) {
    return std::vector<double>(all.size(), 1.0);
  }
  return {all.begin(), all.end()};
}

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
    return weights_by_memory(std::move(group), device,
                             Deadline::after(milliseconds_of(job.parallel.timeout_s)));
  }
  const bool known = std::ranges::any_of(speeds, [](double speed) { return speed > 0; });
  if (job.zero.shards == "speed" && known) return {speeds.begin(), speeds.end()};
  return std::vector<double>(ranks, 1.0);
}

TrainedModel::TrainedModel(const job::JobConfig& job, comm::Group group, const task::JobTask& task,
                           const StartingModel& start,
                           const std::optional<std::filesystem::path>& resume,
                           progress::Observer& observer,
                           const parallel::ReplicatedModelOptions& options,
                           const std::vector<double>& shards)
    : job_(job),
      group_(std::move(group)),
      whole_(start.model),
      optimizer_(make_optimizer(job_, group_.size(), task, whole_)) {
  if (job_.zero.level > 0) {
    begin_in_shards(start, resume, shards, observer);
  } else {
    state_ = checkpoint::starting_point(group_, job_, resume, whole_, *optimizer_, observer);
    store_ = std::make_shared<parallel::ReplicatedModel>(whole_, group_, options);
  }
}

void TrainedModel::begin_in_shards(const StartingModel& start,
                                   const std::optional<std::filesystem::path>& resume,
                                   const std::vector<double>& weights,
                                   progress::Observer& observer) {
  optimizer_facts_ = checkpoint::optimizer_facts(*optimizer_);
  checkpoint::SharedReader saved(group_, resume);
  if (auto* const opened = saved.opened()) {
    checkpoint::require_same_kind(*opened, optimizer_facts_);
    checkpoint::require_same_model(*opened, whole_);
    checkpoint::log_changed_settings(*opened, optimizer_facts_);
    take_uncut(*opened, whole_);
  }
  state_ = checkpoint::starting_point(group_, job_, saved, observer);
  cut(weights, static_cast<bool>(start.values), observer);
  if (saved.found()) {
    take_pieces(saved, *sharded_, *optimizer_);
    sharded_->after_update();
  } else if (start.values) {
    take_drawn(start.values, *sharded_);
  }
}

void TrainedModel::cut(const std::vector<double>& weights, bool hollow,
                       progress::Observer& observer) {
  sharded_ = std::make_shared<parallel::shard::ShardedModel>(
      whole_, group_,
      parallel::shard::ShardedModelOptions{
          .level = static_cast<int>(job_.zero.level),
          .weights = weights,
          .flat_bytes = static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20)),
          .kept = kept_of(job_.zero),
          .folder = job_.zero.offload_path,
          .timeout = milliseconds_of(job_.parallel.timeout_s),
          .hollow = hollow});
  store_ = sharded_;
  auto of_pieces = optim::make_shard_optimizer(job_, tensors_of(sharded_->pieces()),
                                               dimensions_of(sharded_->pieces()));
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
  auto own = own_slices(*sharded_, whole_, *optimizer_);
  own.written = [this] { sharded_->let_go_of_kept(); };
  return checkpoint::save_slices(group_, job_.checkpoint, own, optimizer_facts_, state_);
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
