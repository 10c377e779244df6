#include "bimetal/api/stored_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/optim/adagrad.h>
#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>
#include <torch/csrc/api/include/torch/optim/rmsprop.h>
#include <torch/csrc/api/include/torch/optim/sgd.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/watched.h"
#include "bimetal/optim/cpu_adam.h"
#include "bimetal/optim/fused.h"
#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/shard/memory_weights.h"
#include "bimetal/train/piece_states.h"

namespace bimetal::api {
namespace {

using parallel::shard::Kept;
using parallel::shard::ShardedModel;

/// What ranks may have otherwise than each other.
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

std::vector<double> shards_of(const ZeroOptions& zero, const comm::Group& group,
                              const torch::Device& device, std::chrono::milliseconds timeout) {
  if (zero.shards.empty()) {
    return parallel::shard::weights_by_memory(group, device, Deadline::after(timeout));
  }
  if (std::ssize(zero.shards) == group.size()) return zero.shards;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("ZeroOptions::shards has {} weights for {} ranks: give one for each",
                          zero.shards.size(), group.size()));
}

std::shared_ptr<ShardedModel> make_shards(const task::Model& whole, const comm::Group& group,
                                          const torch::Device& device,
                                          const DataParallelOptions& options) {
  const auto& zero = options.zero;
  if (zero.level < 0 || zero.level > 3) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("ZeroOptions::level is {}: it is 0 to 3", zero.level));
  }
  const auto kept = kept_of(zero);
  require_places(zero);
  if (zero.level == 0) return nullptr;
  return std::make_shared<ShardedModel>(
      whole, group,
      parallel::shard::ShardedModelOptions{
          .level = zero.level,
          .weights = shards_of(zero, group, device, options.parallel.timeout),
          .flat_bytes = options.parallel.bucket_bytes,
          .kept = kept,
          .folder = zero.offload_path,
          .timeout = options.parallel.timeout,
          .form = {.half = std::nullopt, .keep_below = zero.keep_below}});
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

StoredModel::StoredModel(const task::Model& whole, comm::Group group, const torch::Device& device,
                         const DataParallelOptions& options)
    : whole_(whole),
      model_(whole),
      group_(std::move(group)),
      zero_(options.zero),
      message_bytes_(options.parallel.bucket_bytes),
      timeout_(options.parallel.timeout),
      sharded_(make_shards(whole_, group_, device, options)),
      store_(sharded_) {
  if (sharded_) return;
  store_ = std::make_shared<parallel::ReplicatedModel>(model_, group_, options.parallel);
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

KeptOfModel StoredModel::kept() const {
  return {
      .model = model_,
      .trained = sharded_->trained(),
      .pieces = train::shard_pieces(sharded_->pieces()),
      .uncut = train::uncut_of(model_),
      .gives =
          [this](const train::KeptPiece& piece) { return sharded_->facts_of(piece.tensor).counts; },
      .gives_uncut = group_.rank() == 0,
      .looked_at = [this] { sharded_->let_go_of_kept(); }};
}

std::filesystem::path StoredModel::save(const job::CheckpointConfig& config,
                                        torch::optim::Optimizer& optimizer,
                                        checkpoint::TrainingState state) {
  if (!term_) term_ = next_term(group_, config.dir);
  state.term = *term_;
  state.torch_rng = checkpoint::random_state();
  if (sharded_) return save_kept(group_, config, kept(), optimizer, std::move(state), timeout_);
  state.error_feedback = store_->error_feedback();
  std::filesystem::path path;
  comm::do_watched(group_, timeout_, "a checkpoint was being saved", [&] {
    path = checkpoint::save_shared_checkpoint(group_, config, model_, optimizer, state);
  });
  return path;
}

std::optional<checkpoint::TrainingState> StoredModel::resume(const std::filesystem::path& dir,
                                                             torch::optim::Optimizer& optimizer) {
  const auto from = checkpoints_in(group_, dir);
  if (!from) return std::nullopt;
  place_states(optimizer);
  const auto state =
      sharded_ ? take_kept(group_, *from, kept(), optimizer) : resume_whole(*from, optimizer);
  if (sharded_) sharded_->after_update();
  checkpoint::set_random_state(state.torch_rng);
  return state;
}

checkpoint::TrainingState StoredModel::resume_whole(const std::filesystem::path& from,
                                                    torch::optim::Optimizer& optimizer) {
  auto state = checkpoint::load_shared_checkpoint(group_, from, model_, optimizer);
  parallel::broadcast_model(model_, 0, group_, message_bytes_, timeout_);
  store_->set_error_feedback(state->error_feedback, state->step);
  return *std::move(state);
}

void StoredModel::save_model(const std::filesystem::path& path) const {
  auto whole = model_;
  if (sharded_) {
    auto gathered = sharded_->gather([](const auto& piece) { return piece.tensor; }, 0);
    whole.parameters = train::uncut_of(model_).parameters;
    for (auto& named : gathered) whole.parameters.push_back(std::move(named));
  }
  save_on_rank_0(group_, whole, path);
}

}  // namespace bimetal::api
