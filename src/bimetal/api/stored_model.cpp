#include "bimetal/api/stored_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/optim/adagrad.h>
#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>
#include <torch/csrc/api/include/torch/optim/rmsprop.h>
#include <torch/csrc/api/include/torch/optim/sgd.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <span>
#include <unordered_set>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/optim/cpu_adam.h"
#include "bimetal/optim/fused.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/train/piece_states.h"

namespace bimetal::api {
namespace {

using parallel::shard::Kept;
using parallel::shard::ShardedModel;

/// Checks the options that may differ between ranks.
void require_places(const ZeroOptions& zero) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::InvalidArgument, "ZeroOptions::" + why);
  };
  const auto& states = zero.offload_optimizer;
  if (states != "none" && states != "host" && states != "disk") {
    refuse(fmt::format("offload_optimizer is \"{}\": take \"none\", \"host\" or \"disk\"", states));
  }
  if (states != "none" && zero.level == 0) {
    refuse("offload_optimizer moves the state of a rank's shard: it needs level 1, 2 or 3");
  }
  if ((states == "disk" || zero.offload_parameters == "disk") && zero.offload_path.empty()) {
    refuse("offload_path is empty, and \"disk\" needs one: a folder on a fast disk");
  }
}

Kept kept_of(const ZeroOptions& zero) {
  const auto& where = zero.offload_parameters;
  if (where != "none" && zero.level < 3) {
    throw Error(ErrorCode::InvalidArgument,
                "ZeroOptions::offload_parameters goes with level 3 alone: at others parameters are "
                "whole on every rank");
  }
  if (where == "none") return Kept::OnDevice;
  if (where == "host") return Kept::OnHost;
  if (where == "disk") return Kept::OnDisk;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("ZeroOptions::offload_parameters is \"{}\": take \"none\", \"host\" or "
                          "\"disk\"",
                          where));
}

/// `whom`: they are for.
std::vector<double> shards_of(const ZeroOptions& zero, const comm::Group& group, const char* whom,
                              const torch::Device& device, std::chrono::milliseconds timeout) {
  if (zero.shards.empty()) {
    return parallel::shard::weights_by_memory(group, device, Deadline::after(timeout));
  }
  if (std::ssize(zero.shards) == group.size()) return zero.shards;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("ZeroOptions::shards has {} weights for {} {}: give one for each",
                          zero.shards.size(), group.size(), whom));
}

/// Names, sizes and types, without values.
task::ModelState outline_of(const task::ModelState& model) {
  auto outline = model;
  for (auto* const tensors : {&outline.parameters, &outline.buffers}) {
    for (auto& [name, tensor] : *tensors) {
      const auto type = torch::TensorOptions().dtype(tensor.scalar_type());
      const bool trained = tensor.requires_grad();
      tensor = torch::empty({}, type).expand(tensor.sizes()).set_requires_grad(trained);
    }
  }
  return outline;
}

/// Memory for an outline, on the CPU: with the values of `from`, which has all of its names or
/// none.
void give_values(task::ModelState& outline, const task::ModelState& from) {
  const torch::NoGradGuard no_grad;
  const auto fill = [](std::vector<task::NamedTensor>& tensors,
                       const std::vector<task::NamedTensor>& values) {
    for (auto& [name, tensor] : tensors) {
      const auto found = std::ranges::find(values, name, &task::NamedTensor::name);
      tensor = found != values.end() ? found->tensor.detach().to(torch::kCPU).contiguous()
                                     : torch::empty(tensor.sizes(), tensor.scalar_type());
    }
  };
  fill(outline.parameters, from.parameters);
  fill(outline.buffers, from.buffers);
}

void add_to(task::ModelState& all, const task::ModelState& more) {
  all.parameters.insert(all.parameters.end(), more.parameters.begin(), more.parameters.end());
  all.buffers.insert(all.buffers.end(), more.buffers.begin(), more.buffers.end());
}

/// Lets the memory go of what `whole` has and `own` has not.
void let_go_of_others(const task::Model& whole, const task::Model& own) {
  std::unordered_set<const c10::StorageImpl*> kept;
  const auto storage_of = [](const torch::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  };
  for (const auto& tensors : {own.named_parameters(), own.named_buffers()}) {
    for (const auto& named : tensors) kept.insert(storage_of(named.tensor));
  }
  for (const auto& unit : whole.units) {
    for (const auto& named : unit.parameters) {
      if (kept.contains(storage_of(named.tensor))) continue;
      parallel::shard::close_off(named.tensor, unit.name);
    }
  }
}

/// Whether it is an Optimizer, whose states are the host's; puts them on disk if `folder` says so.
template <typename Optimizer>
bool place_states_of(torch::optim::Optimizer& optimizer, const std::filesystem::path* folder) {
  auto* const placed = dynamic_cast<Optimizer*>(&optimizer);
  if (placed == nullptr) return false;
  if (folder != nullptr && !placed->disk_traffic()) placed->keep_on_disk(*folder);
  return true;
}

template <typename... Kinds>
bool is_one_of(const torch::optim::Optimizer& optimizer) {
  return (... || (dynamic_cast<const Kinds*>(&optimizer) != nullptr));
}

}  // namespace

std::vector<std::string> facts_of(const ZeroOptions& zero) {
  return {fmt::format("zero.level = {}", zero.level),
          fmt::format("zero.shards = [{}]", fmt::join(zero.shards, ", ")),
          fmt::format("zero.keep_below = {}", zero.keep_below)};
}

PartOfModel part_of(const std::shared_ptr<const parallel::Mesh>& mesh, const task::Model& whole,
                    const std::vector<std::size_t>& begins, const parallel::PartWeights& weights,
                    bool sequence_parallel, std::chrono::milliseconds timeout) {
  using parallel::tensor::Between;
  PartOfModel part{.mesh = mesh, .whole = outline_of(whole)};
  const int stages = mesh->shape().stages;
  for (int stage = 0; stage < stages; ++stage) {
    const auto of_stage = parallel::pipeline::make_stage(whole, begins, stages, stage);
    part.stages.push_back(outline_of(of_stage.model));
  }
  part.own = parallel::take_part(*mesh, whole, begins, parallel::cuts_of_stages(whole, weights),
                                 timeout, sequence_parallel ? Between::parts : Between::whole);
  let_go_of_others(whole, part.own.stage.model);
  return part;
}

StoredModel::StoredModel(const task::Model& whole, comm::Group group, const torch::Device& device,
                         ZeroOptions zero, const parallel::ReplicatedModelOptions& parallel,
                         PartOfModel part)
    : whole_(part.mesh ? part.own.stage.model : whole),
      model_(whole_),
      group_(std::move(group)),
      zero_(std::move(zero)),
      message_bytes_(parallel.bucket_bytes),
      timeout_(parallel.timeout),
      part_(std::move(part)),
      sharded_(make_shards(device)),
      store_(sharded_) {
  if (!sharded_) {
    const auto& replicas = is_part() ? part_.mesh->replicas() : group_;
    store_ = std::make_shared<parallel::ReplicatedModel>(model_, replicas, parallel);
  }
  sync_ = {store_};
  if (is_part()) sum_with_other_parts();
}

std::shared_ptr<ShardedModel> StoredModel::make_shards(const torch::Device& device) const {
  if (zero_.level < 0 || zero_.level > 3) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("ZeroOptions::level is {}: it is 0 to 3", zero_.level));
  }
  const auto kept = kept_of(zero_);
  require_places(zero_);
  if (zero_.level == 0) return nullptr;
  const auto& among = is_part() ? part_.mesh->replicas() : group_;
  parallel::shard::ShardedModelOptions how{
      .level = zero_.level,
      .weights =
          shards_of(zero_, among, is_part() ? "replicas of a mesh" : "ranks", device, timeout_),
      .flat_bytes = message_bytes_,
      .kept = kept,
      .folder = zero_.offload_path,
      .timeout = timeout_,
      .form = {.half = std::nullopt, .keep_below = zero_.keep_below}};
  if (part_.own.tensor) how.whole = part_.own.tensor->kept_whole();
  if (is_part()) {
    how.stage = parallel::pipeline::passes_of_stage(*part_.mesh, part_.own.stage.tied);
  }
  return std::make_shared<ShardedModel>(whole_, among, how);
}

void StoredModel::sum_with_other_parts() {
  auto& [stage, tensor] = part_.own;
  if (sharded_) stage = parallel::pipeline::with_units(std::move(stage), sharded_->model());
  stage_sums_ = std::make_shared<parallel::pipeline::StageSums>(part_.mesh, store_, stage.tied,
                                                                timeout_, tensor);
  std::vector<std::shared_ptr<parallel::ExtraSums>> extra = {stage_sums_};
  if (tensor) {
    extra.insert(extra.begin(), std::make_shared<parallel::tensor::TensorSums>(store_, tensor));
  }
  sync_ = {store_, std::move(extra)};
}

std::vector<torch::Tensor> StoredModel::optimized() const {
  if (!sharded_) return task::tensors_of(model_.parameters);
  std::vector<torch::Tensor> pieces;
  for (const auto& piece : sharded_->pieces()) pieces.push_back(piece.tensor);
  return pieces;
}

void StoredModel::require_steps_pieces(const torch::optim::Optimizer& optimizer) const {
  namespace theirs = torch::optim;
  if (!sharded_ || is_one_of<theirs::SGD, theirs::Adam, theirs::AdamW, theirs::RMSprop,
                             theirs::Adagrad, optim::MergedUpdate>(optimizer)) {
    return;
  }
  throw Error(ErrorCode::InvalidArgument,
              "ZeroOptions::level gives the optimizer pieces of tensors: take one that works "
              "element by element (SGD, Adam, AdamW, RMSprop, Adagrad), or level 0");
}

void StoredModel::place_states(torch::optim::Optimizer& optimizer) const {
  const auto& place = zero_.offload_optimizer;
  const bool on_disk = place == "disk";
  const bool on_host =
      std::ranges::all_of(optimized(), [](const torch::Tensor& piece) { return piece.is_cpu(); });
  if (place == "none" || (on_host && !on_disk)) return;
  const auto* const folder = on_disk ? &zero_.offload_path : nullptr;
  if (place_states_of<optim::CpuAdam>(optimizer, folder)) return;
  if (place_states_of<optim::CpuAdamW>(optimizer, folder)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("ZeroOptions::offload_optimizer is \"{}\", where this optimizer cannot "
                          "keep its states: take bimetal::Adam or bimetal::AdamW",
                          place));
}

void StoredModel::begin_passes() const {
  if (sharded_) sharded_->begin_passes();
}

void StoredModel::end_passes() const {
  if (sharded_) sharded_->end_passes();
}

/// If several ranks hold the same part, the first of them gives it.
KeptOfModel StoredModel::kept() const {
  const auto place = is_part() ? part_.mesh->place() : parallel::MeshPlace{};
  const bool first = is_part() ? place.replica == 0 : group_.rank() == 0;
  KeptOfModel kept{.model = model_,
                   .trained = {},
                   .pieces = train::kept_pieces(model_, sharded_.get(), part_.own.tensor.get()),
                   .uncut = train::kept_whole(model_, sharded_.get()),
                   .gives =
                       [this, first](const train::KeptPiece& piece) {
                         return (first || sharded_) && sync_.counts(piece.tensor);
                       },
                   .gives_uncut = first && place.tensor == 0};
  if (sharded_) kept.looked_at = [this] { sharded_->let_go_of_kept(); };
  if (is_part()) kept.model = part_.whole;
  kept.trained = is_part() ? kept.model.parameters : sharded_->trained();
  return kept;
}

std::filesystem::path StoredModel::save(const job::CheckpointConfig& config,
                                        torch::optim::Optimizer& optimizer,
                                        checkpoint::TrainingState state) {
  if (!term_) term_ = next_term(group_, config.dir);
  state.term = *term_;
  state.torch_rng = checkpoint::random_state();
  if (sharded_ || is_part()) {
    return save_kept(group_, config, kept(), optimizer, std::move(state), timeout_);
  }
  state.error_feedback = store_->error_feedback();
  std::filesystem::path path;
  comm::do_watched(group_, timeout_, "a checkpoint was being saved", [&] {
    path = checkpoint::save_shared_checkpoint(group_, config, model_, optimizer, state);
  });
  return path;
}

std::optional<checkpoint::TrainingState> StoredModel::resume(const std::filesystem::path& dir,
                                                             torch::optim::Optimizer& optimizer) {
  std::optional<checkpoint::TrainingState> state;
  comm::do_watched(group_, timeout_, "a checkpoint was being loaded", [&] {
    const auto from = checkpoints_in(group_, dir);
    if (!from) return;
    place_states(optimizer);
    state = sharded_ || is_part() ? take_kept(group_, *from, kept(), optimizer)
                                  : resume_whole(*from, optimizer);
    if (sharded_) sharded_->after_update();
  });
  if (state) checkpoint::set_random_state(state->torch_rng);
  return state;
}

checkpoint::TrainingState StoredModel::resume_whole(const std::filesystem::path& from,
                                                    torch::optim::Optimizer& optimizer) {
  auto state = checkpoint::load_shared_checkpoint(group_, from, model_, optimizer);
  parallel::broadcast_model(model_, 0, group_, message_bytes_, timeout_);
  store_->set_error_feedback(state->error_feedback, state->step);
  return *std::move(state);
}

/// The whole of this rank's parts, on the CPU of `root` at least. Collective among the replicas.
task::ModelState StoredModel::gathered(int root) const {
  auto whole = model_;
  if (sharded_) {
    auto trained = sharded_->gather([](const auto& piece) { return piece.tensor; }, root);
    whole.parameters = train::uncut_of(model_).parameters;
    for (auto& named : trained) whole.parameters.push_back(std::move(named));
  }
  return whole;
}

/// Parts of tensors of this rank's stage become whole ones. Collective among those who have them.
void StoredModel::join_parts(task::ModelState& stage) const {
  if (!part_.own.tensor) return;
  const auto& cuts = part_.own.tensor->cuts();
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : stage.parameters) {
    if (!cuts.has(name)) continue;
    const auto whole = torch::empty(cuts.sizes(name), tensor.options());
    for (int rank = 0; rank < cuts.ranks(); ++rank) {
      const bool own = rank == part_.mesh->place().tensor;
      const auto part = own ? tensor.detach().contiguous()
                            : torch::empty(cuts.part_sizes(name, rank), tensor.options());
      parallel::broadcast_tensors(std::span(&part, 1), rank, part_.mesh->tensor(), message_bytes_,
                                  timeout_);
      cuts.put(name, part, rank, whole);
    }
    tensor = whole;
  }
}

/// Stage by stage, each by the first of its ranks.
void StoredModel::save_model(const std::filesystem::path& path) const {
  if (!is_part()) return save_on_rank_0(group_, gathered(0), path);
  const auto& shape = part_.mesh->shape();
  auto own = gathered(ShardedModel::kEveryRank);
  join_parts(own);
  task::ModelState all;
  for (int stage = 0; stage < shape.stages; ++stage) {
    auto of_stage = part_.stages[static_cast<std::size_t>(stage)];
    give_values(of_stage, stage == part_.mesh->place().stage ? own : task::ModelState());
    parallel::broadcast_model(of_stage, parallel::rank_at(shape, {.stage = stage}), group_,
                              message_bytes_, timeout_);
    if (group_.rank() == 0) add_to(all, of_stage);
  }
  auto whole = part_.whole;
  if (group_.rank() == 0) give_values(whole, all);
  save_on_rank_0(group_, whole, path);
}

}  // namespace bimetal::api
