#include "bimetal/train/trained_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/train/setup.h"

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
  if (job.mesh.stages > 1 || job.mesh.tensor > 1) {
    throw Error(
        ErrorCode::Unsupported,
        "mesh.stages and mesh.tensor do not go with an optimizer of the task's own: whether it may "
        "be given parts of a model is not known; take train.optimizer");
  }
  return task.make_optimizer(model.parameters());
}

/// For SGD, the only optimizer whose momentum depends on the ranks: optimizer_config().
void set_momentum(torch::optim::Optimizer& optimizer, double momentum) {
  for (auto& group : optimizer.param_groups()) {
    if (auto* const sgd = dynamic_cast<torch::optim::SGDOptions*>(&group.options())) {
      sgd->momentum(momentum);
    }
  }
}

}  // namespace

std::vector<double> shard_weights(const job::JobConfig& job, comm::Group group,
                                  const torch::Device& device, std::span<const double> speeds) {
  const auto ranks = static_cast<std::size_t>(group.size());
  if (!job.zero.weights.empty()) {
    if (job.zero.weights.size() == ranks) return job.zero.weights;
    const bool mesh = job.mesh.stages > 1 || job.mesh.tensor > 1;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("zero.shards has {} weights for {} {}: give one for each",
                            job.zero.weights.size(), ranks, mesh ? "replicas of a mesh" : "ranks"));
  }
  if (job.zero.shards == "memory") {
    return parallel::shard::weights_by_memory(
        std::move(group), device, Deadline::after(milliseconds_of(job.parallel.timeout_s)),
        job.zero.copies > 1);
  }
  const bool known = std::ranges::any_of(speeds, [](double speed) { return speed > 0; });
  if (job.zero.shards == "speed" && known) return {speeds.begin(), speeds.end()};
  return std::vector<double>(ranks, 1.0);
}

TrainedModel::TrainedModel(const job::JobConfig& job, comm::Group group,
                           const std::shared_ptr<const task::JobTask>& task,
                           const device::Place& place, Learnt& learnt, progress::Observer& observer,
                           const parallel::ReplicatedModelOptions& options,
                           const std::vector<double>& shards,
                           std::shared_ptr<const parallel::Mesh> mesh, const ChosenCuts& cuts,
                           std::optional<torch::Dtype> half)
    : job_(job), group_(std::move(group)), half_(half), learnt_(learnt), mesh_(std::move(mesh)) {
  const auto begin = [&] {
    if (!mesh_ && job_.zero.level == 0) return begin_whole(task, place, observer, options);
    learnt_.model = {};  // of an epoch before, which had all of it
    learnt_.optimizer.reset();
    const auto start = make_starting_model(job_, task, place);
    whole_ = start.model;
    optimizer_ = make_optimizer(job_, group_.size(), *task, whole_);
    if (mesh_) {
      begin_in_mesh(start, cuts, shards, options,
                    operations_of_replica(*task, job_.train.global_batch, mesh_->shape()),
                    observer);
    } else {
      begin_in_shards(start, shards, options, observer);
    }
  };
  // They wait long for each other where rank 0 reads a checkpoint.
  comm::do_watched(group_, milliseconds_of(job_.parallel.timeout_s), "the model was being prepared",
                   begin);
  learnt_.begun = true;
}

void make_whole(const job::JobConfig& job, int ranks,
                const std::shared_ptr<const task::JobTask>& task, const device::Place& place,
                Learnt& learnt) {
  if (learnt.optimizer) return;
  learnt.model = make_starting_model(job, task, place).model;
  learnt.optimizer = make_optimizer(job, ranks, *task, learnt.model);
}

void TrainedModel::begin_whole(const std::shared_ptr<const task::JobTask>& task,
                               const device::Place& place, progress::Observer& observer,
                               const parallel::ReplicatedModelOptions& options) {
  if (!learnt_.begun || !learnt_.optimizer) {  // none: the epoch before had it in shards or parts
    make_whole(job_, group_.size(), task, place, learnt_);
    take_up(checkpoint::starting_point(group_, job_, learnt_.saved, learnt_.model,
                                       *learnt_.optimizer, observer));
  } else if (!task->has_optimizer()) {
    set_momentum(*learnt_.optimizer, optimizer_config(job_, group_.size()).momentum);
  }
  whole_ = learnt_.model;
  optimizer_ = learnt_.optimizer;
  store_ = std::make_shared<parallel::ReplicatedModel>(whole_, group_, options);
  sync_ = store_;
}

/// Begins at a checkpoint, once it is certain that it can.
void TrainedModel::begin_at(checkpoint::SharedReader& saved, progress::Observer& observer) {
  optimizer_facts_ = checkpoint::optimizer_facts(*optimizer_);
  saved.on_rank_0([&](const checkpoint::OpenCheckpoint& opened) {
    checkpoint::require_same_kind(opened, optimizer_facts_);
    checkpoint::require_same_model(opened, whole_);
    checkpoint::log_changed_settings(opened, optimizer_facts_);
  });
  take_up(checkpoint::starting_point(group_, job_, saved, observer));
}

/// The saved state must be that of the last training.
void TrainedModel::take_up(checkpoint::TrainingState saved) {
  if (learnt_.begun && saved.step != learnt_.state.step) {
    throw Error(
        ErrorCode::Unsupported,
        fmt::format("other ranks cannot go on after step {} with a model in shards or parts "
                    "that was saved last after step {}: set checkpoint.dir, so that it is "
                    "saved before ranks leave",
                    learnt_.state.step, saved.step));
  }
  learnt_.state = std::move(saved);
}

void TrainedModel::begin_in_shards(const StartingModel& start, const std::vector<double>& weights,
                                   const parallel::ReplicatedModelOptions& options,
                                   progress::Observer& observer) {
  checkpoint::SharedReader saved(group_, learnt_.saved);
  begin_at(saved, observer);
  if (saved.found()) take_whole(saved, uncut_of(whole_));
  cut(group_, weights, options, static_cast<bool>(start.values), observer);
  sync_ = store_;
  if (saved.found()) {
    require_known_states(saved, sharded_->trained());
    take_pieces(saved, kept_pieces(), *optimizer_, [this] { sharded_->let_go_of_kept(); });
    sharded_->after_update();
  } else if (start.values) {
    take_drawn(start.values, *sharded_);
    sharded_->after_update();
  }
}

/// Each rank reads its own part of a checkpoint, and no more.
void TrainedModel::begin_in_mesh(const StartingModel& start, const ChosenCuts& cuts,
                                 const std::vector<double>& shards,
                                 const parallel::ReplicatedModelOptions& options,
                                 const Operations& operations, progress::Observer& observer) {
  checkpoint::SharedReader saved(group_, learnt_.saved);
  begin_at(saved, observer);
  if (saved.found()) {
    require_known_states(saved, whole_.named_parameters());
  } else if (!start.values) {
    parallel::broadcast_model(whole_, 0, group_, options.bucket_bytes, options.timeout);
  }
  take_part(cuts, static_cast<bool>(start.values), operations, observer, options);
  if (start.values && !saved.found()) take_drawn(start.values, whole_);
  if (job_.zero.level > 0) {
    cut(mesh_->replicas(), shards, options, /*hollow=*/false, observer);
  } else {
    optimizer_ =
        optim::make_optimizer(optimizer_config(job_, mesh_->shape().replicas), whole_.parameters());
  }
  if (saved.found()) {
    take_whole(saved, kept_whole());
    take_pieces(saved, kept_pieces(), *optimizer_, [this] {
      if (sharded_) sharded_->let_go_of_kept();
    });
    if (sharded_) sharded_->after_update();
  }
  if (!sharded_) {
    store_ = std::make_shared<parallel::ReplicatedModel>(whole_, mesh_->replicas(), options);
  }
  std::vector<std::shared_ptr<parallel::ExtraSums>> extra;
  if (tensor_) extra.push_back(std::make_shared<parallel::tensor::TensorSums>(store_, tensor_));
  if (mesh_->shape().stages > 1) {
    stage_sums_ = std::make_shared<parallel::pipeline::StageSums>(mesh_, store_, stage_.tied,
                                                                  options.timeout, tensor_);
    extra.push_back(stage_sums_);
  }
  sync_ = {store_, std::move(extra)};
}

void TrainedModel::cut(comm::Group group, const std::vector<double>& weights,
                       const parallel::ReplicatedModelOptions& options, bool hollow,
                       progress::Observer& observer) {
  std::optional<parallel::shard::StagePasses> stages;
  if (mesh_ && mesh_->shape().stages > 1) {
    stages = parallel::pipeline::passes_of_stage(*mesh_, stage_.tied);
  }
  sharded_ = std::make_shared<parallel::shard::ShardedModel>(
      whole_, std::move(group),
      parallel::shard::ShardedModelOptions{
          .level = static_cast<int>(job_.zero.level),
          .weights = weights,
          .flat_bytes = static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20)),
          .kept = kept_of(job_.zero),
          .folder = job_.zero.offload_path,
          .timeout = milliseconds_of(job_.parallel.timeout_s),
          .hollow = hollow,
          .form = {.half = half_, .keep_below = job_.zero.keep_below},
          .whole = tensor_ ? tensor_->kept_whole() : std::vector<torch::Tensor>(),
          .copies = job_.zero.copies > 1,
          .stage = stages,
          .form_island = options.form_island});
  store_ = sharded_;
  if (stages) stage_ = parallel::pipeline::with_units(std::move(stage_), sharded_->model());
  auto of_pieces = optim::make_shard_optimizer(job_, tensors_of(sharded_->pieces()),
                                               dimensions_of(sharded_->pieces()));
  optimizer_ = std::move(of_pieces);
  parallel::shard::follow_update(sharded_, *optimizer_);
  if (job_.zero.update == "backward") {
    sharded_->update_in_backward([optimizer = optimizer_.get()] { optimizer->step(); });
  }
  observer.on_notice(describe(static_cast<int>(job_.zero.level), sharded_->shard_bytes()));
  if (job_.zero.copies > 1 && !sharded_->keeps_copies()) {
    observer.on_notice(
        "zero.copies = 2: there is but one rank with a shard, and no other to keep its copy");
  }
  const bool to_host =
      job_.zero.offload_optimizer == "host" || job_.zero.offload_parameters == "host";
  if (to_host && whole_.parameters().front().is_cpu()) {
    observer.on_notice(
        "zero.offload_optimizer, offload_parameters = \"host\": this rank's device is a CPU, which "
        "keeps everything in the host's memory in any case");
  }
}

/// From here on this rank has no more of the model than its stage, and of that its part.
void TrainedModel::take_part(const ChosenCuts& cuts, bool hollow, const Operations& operations,
                             progress::Observer& observer,
                             const parallel::ReplicatedModelOptions& options) {
  const auto& shape = mesh_->shape();
  const auto tensors = parallel::cuts_of_stages(whole_, cuts.parts);
  observer.on_notice(notice_of(shape, whole_, cuts.begins, job_.mesh, tensors, operations));
  using parallel::tensor::Between;
  auto part =
      hollow ? parallel::take_hollow_part(*mesh_, whole_, cuts.begins, tensors, options.timeout,
                                          options.form_island)
             : parallel::take_part(*mesh_, whole_, cuts.begins, tensors, options.timeout,
                                   job_.mesh.sequence_parallel ? Between::parts : Between::whole,
                                   options.form_island);
  stage_ = std::move(part.stage);
  tensor_ = std::move(part.tensor);
  whole_ = stage_.model;
}

double TrainedModel::waited_seconds() const {
  return store_->wait_seconds() + (tensor_ ? tensor_->ranks()->seconds() : 0);
}

void TrainedModel::begin_passes() const {
  if (sharded_) sharded_->begin_passes();
}

void TrainedModel::end_passes() const {
  if (sharded_) sharded_->end_passes();
}

}  // namespace bimetal::train
