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
#include "bimetal/checkpoint/slices/save_slices.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/watched.h"
#include "bimetal/optim/merged_update.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/shard/memory_weights.h"
#include "bimetal/parallel/tensor/tensor_store.h"
#include "bimetal/train/gradient_compression.h"
#include "bimetal/train/tensor/tensor_states.h"

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
  if (job.mesh.stages > 1) {
    throw Error(ErrorCode::Unsupported,
                "mesh.stages does not go with an optimizer of the task's own: whether it may be "
                "given parts of a model is not known; take train.optimizer");
  }
  return task.make_optimizer(model.parameters());
}

/// Who has which units, for people.
std::string picture_of(const task::Model& whole, const StagePlan& plan,
                       const std::string& schedule) {
  const auto& shape = plan.mesh->shape();
  std::vector<std::string> units;
  for (int stage = 0; stage < shape.stages; ++stage) {
    units.push_back(parallel::pipeline::describe_units(whole, plan.begins, shape.stages, stage));
  }
  return fmt::format("the model in {} stages, schedule \"{}\":\n{}", shape.stages, schedule,
                     parallel::picture(shape, units));
}

/// `whole` with `values` in the place of its parameters.
task::ModelState with_values(task::ModelState whole, const std::vector<task::NamedTensor>& values) {
  for (const auto& [name, tensor] : values) {
    const auto known = std::ranges::find(whole.parameters, name, &task::NamedTensor::name);
    known->tensor = tensor.detach().set_requires_grad(true);
  }
  return whole;
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
                           const StartingModel& start,
                           const std::optional<std::filesystem::path>& resume,
                           progress::Observer& observer,
                           const parallel::ReplicatedModelOptions& options,
                           const std::vector<double>& shards, const StagePlan& stages,
                           const Replicas& replicas, const std::vector<double>& parts,
                           std::optional<torch::Dtype> half)
    : job_(job),
      group_(std::move(group)),
      replicas_(replicas),
      half_(half),
      whole_(start.model),
      optimizer_(make_optimizer(job_, group_.size(), task, whole_)) {
  if (stages.mesh) {
    begin_in_stages(stages, resume, shards, options, observer);
  } else if (job_.zero.level > 0) {
    begin_in_shards(start, resume, shards, observer);
  } else {
    state_ = checkpoint::starting_point(group_, job_, resume, whole_, *optimizer_, observer);
    if (replicas_.in_parts()) {
      cut_tensors(parts, options, observer);
    } else {
      store_ = std::make_shared<parallel::ReplicatedModel>(whole_, group_, options);
    }
  }
}

/// Where all goes on, once it is certain that it can.
void TrainedModel::begin_at(checkpoint::SharedReader& saved, progress::Observer& observer) {
  optimizer_facts_ = checkpoint::optimizer_facts(*optimizer_);
  if (auto* const opened = saved.opened()) {
    checkpoint::require_same_kind(*opened, optimizer_facts_);
    checkpoint::require_same_model(*opened, whole_);
    checkpoint::log_changed_settings(*opened, optimizer_facts_);
  }
  state_ = checkpoint::starting_point(group_, job_, saved, observer);
}

void TrainedModel::begin_in_shards(const StartingModel& start,
                                   const std::optional<std::filesystem::path>& resume,
                                   const std::vector<double>& weights,
                                   progress::Observer& observer) {
  checkpoint::SharedReader saved(group_, resume);
  begin_at(saved, observer);
  if (saved.found()) take_whole(saved, uncut_of(whole_));
  cut(group_, weights, static_cast<bool>(start.values), observer);
  if (saved.found()) {
    require_known_states(saved, sharded_->trained());
    take_pieces(saved, sharded_->pieces(), *optimizer_, [this] { sharded_->let_go_of_kept(); });
    sharded_->after_update();
  } else if (start.values) {
    take_drawn(start.values, *sharded_);
    sharded_->after_update();
  }
}

/// Each rank reads its own stage of a checkpoint, and no more.
void TrainedModel::begin_in_stages(const StagePlan& plan,
                                   const std::optional<std::filesystem::path>& resume,
                                   const std::vector<double>& shards,
                                   const parallel::ReplicatedModelOptions& options,
                                   progress::Observer& observer) {
  checkpoint::SharedReader saved(group_, resume);
  begin_at(saved, observer);
  if (saved.found()) {
    require_known_states(saved, whole_.named_parameters());
  } else {
    const task::ModelState all(whole_);
    for (const auto* tensors : {&all.parameters, &all.buffers}) {
      parallel::broadcast_tensors(task::tensors_of(*tensors), 0, group_, options.bucket_bytes,
                                  options.timeout);
    }
  }
  take_stage(plan, shards, observer);
  if (saved.found()) {
    take_whole(saved, kept_whole());
    take_pieces(saved, kept_pieces(), *optimizer_);
    if (sharded_) sharded_->after_update();
  }
  if (!sharded_) {
    store_ = std::make_shared<parallel::ReplicatedModel>(whole_, mesh_->replicas(), options);
  }
  stage_store_ =
      std::make_shared<parallel::pipeline::StageStore>(mesh_, store_, stage_.tied, options.timeout);
  store_ = stage_store_;
  if (sharded_) count_pieces();
}

void TrainedModel::cut(comm::Group group, const std::vector<double>& weights, bool hollow,
                       progress::Observer& observer) {
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
          .form = {.half = half_, .keep_below = job_.zero.keep_below}});
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

void TrainedModel::cut_tensors(const std::vector<double>& weights,
                               const parallel::ReplicatedModelOptions& options,
                               progress::Observer& observer) {
  const auto learnt = checkpoint::optimizer_tensors(*optimizer_, whole_);
  auto ranks = parallel::tensor::GroupRanks::make(replicas_.parts(), weights, options.timeout);
  tensor_ = std::make_shared<parallel::tensor::TensorModel>(whole_, std::move(ranks));
  optimizer_ =
      optim::make_optimizer(optimizer_config(job_, replicas_.group().size()), whole_.parameters());
  optimizer_->state() = checkpoint::optimizer_states(part_of_states(learnt, *tensor_), *optimizer_,
                                                     whole_, "the checkpoint's part for this rank");
  store_ = std::make_shared<parallel::tensor::TensorStore>(
      std::make_shared<parallel::ReplicatedModel>(tensor_->model(), replicas_.group(), options),
      tensor_);
  std::int64_t bytes = 0;
  for (const auto& parameter : whole_.parameters()) {
    bytes += static_cast<std::int64_t>(parameter.nbytes());
  }
  observer.on_notice(
      fmt::format("the tensors of a replica are in parts on {} ranks, by weights of {:.3g}; the "
                  "first has {} MiB "
                  "of parameters",
                  weights.size(), fmt::join(weights, " : "), (bytes + (1 << 19)) >> 20));
}

/// From here on this rank has no more of the model than its stage.
void TrainedModel::take_stage(const StagePlan& plan, const std::vector<double>& shards,
                              progress::Observer& observer) {
  mesh_ = plan.mesh;
  const auto whole = whole_;
  stage_ = parallel::pipeline::make_stage(whole, plan.begins, mesh_->shape().stages,
                                          mesh_->place().stage);
  whole_ = stage_.model;
  if (job_.zero.level > 0) {
    cut(mesh_->replicas(), shards, /*hollow=*/false, observer);
  } else {
    optimizer_ =
        optim::make_optimizer(optimizer_config(job_, mesh_->shape().replicas), whole_.parameters());
  }
  observer.on_notice(picture_of(whole, plan, job_.mesh.schedule));
}

/// Pieces of tensors that other stages have, too, count once.
void TrainedModel::count_pieces() {
  for (const auto& piece : sharded_->pieces()) {
    const auto found =
        std::ranges::find(sharded_->trained(), piece.parameter, &task::NamedTensor::name);
    stage_store_->add_piece(found->tensor, piece.tensor);
  }
}

void TrainedModel::end_passes() const {
  if (sharded_) sharded_->end_passes();
}

std::filesystem::path TrainedModel::save() {
  std::filesystem::path path;
  comm::do_watched(group_, milliseconds_of(job_.parallel.timeout_s), "a checkpoint was being saved",
                   [&] { path = save_unwatched(); });
  return path;
}

std::filesystem::path TrainedModel::save_unwatched() {
  if (sharded_ || mesh_) return save_own_slices();
  if (tensor_) return save_together();
  return checkpoint::save_shared_checkpoint(group_, job_.checkpoint, whole_, *optimizer_, state_);
}

/// Of this rank's part of the model what is in pieces.
KeptPieces TrainedModel::kept_pieces() const {
  return sharded_ ? sharded_->pieces() : whole_pieces(whole_);
}

/// The rest of it.
task::ModelState TrainedModel::kept_whole() const {
  if (sharded_) return uncut_of(whole_);
  task::ModelState rest(whole_);
  rest.parameters.clear();
  return rest;
}

/// What several ranks keep the first of them gives.
std::filesystem::path TrainedModel::save_own_slices() {
  auto own = own_slices(kept_pieces(), *optimizer_, [this](const parallel::shard::Piece& piece) {
    return !stage_store_ || stage_store_->counts(piece.tensor);
  });
  if (mesh_ ? mesh_->place().replica == 0 : group_.rank() == 0) add_whole(own, kept_whole());
  if (sharded_) own.written = [this] { sharded_->let_go_of_kept(); };
  return checkpoint::save_slices(group_, job_.checkpoint, own, optimizer_facts_, state_);
}

/// Put together on rank 0 from the parts of one replica, which has everything.
std::filesystem::path TrainedModel::save_together() {
  task::ModelState whole(whole_);
  checkpoint::TensorMap learnt;
  if (replicas_.group().rank() == 0) {
    learnt = gather_states(*tensor_, *optimizer_);
    whole = with_values(whole, tensor_->gather(whole_.named_parameters()));
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
