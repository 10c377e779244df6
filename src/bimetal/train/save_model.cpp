// Turns a trained model into a checkpoint: a whole model, shards or parts; at once, or from copies
// while training goes on.

#include <algorithm>
#include <array>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/checkpoint/slices/save_slices.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/host.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {
namespace {

/// How many times the bytes of a checkpoint must be free to write it from copies.
constexpr double kRoomForCopies = 4;

/// A copy that is still to be made.
struct Copy {
  torch::Tensor from, to;
};

/// Puts a contiguous copy in the place of each tensor. Returns nothing, and makes no copy, if there
/// is no room. Tensors that only change `in_updates` and are in the host's memory are not copied
/// yet: their copies are returned, to be made later.
std::optional<std::vector<Copy>> copy_to_host(const std::vector<torch::Tensor*>& tensors,
                                              const std::vector<torch::Tensor*>& in_updates = {}) {
  double bytes = 0;
  for (const auto* all : {&tensors, &in_updates}) {
    for (const auto* tensor : *all) bytes += static_cast<double>(tensor->nbytes());
  }
  if (kRoomForCopies * bytes >= static_cast<double>(device::host_memory().shared_free_bytes)) {
    return std::nullopt;
  }
  const torch::NoGradGuard no_grad;
  const auto copy = [](torch::Tensor& tensor) {
    const auto host = tensor.to(torch::kCPU).contiguous();
    tensor = host.is_alias_of(tensor) ? host.clone() : host;
  };
  std::vector<Copy> later;
  for (auto* const tensor : tensors) copy(*tensor);
  for (auto* const tensor : in_updates) {
    if (!tensor->is_cpu() || !tensor->is_contiguous()) {
      copy(*tensor);
      continue;
    }
    later.push_back({tensor->detach(), torch::empty_like(*tensor)});
    *tensor = later.back().to;
  }
  return later;
}

/// By one thread, which leaves the others to those who train.
void make_copies(const std::vector<Copy>& copies) {
  for (const auto& [from, to] : copies) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  }
}

}  // namespace

std::filesystem::path TrainedModel::save() {
  std::filesystem::path path;
  comm::do_watched(group_, milliseconds_of(job_.parallel.timeout_s), "a checkpoint was being saved",
                   [&] { path = save_unwatched(); });
  return path;
}

std::filesystem::path TrainedModel::save_unwatched() {
  if (sharded_ || mesh_) {
    return checkpoint::save_slices(group_, job_.checkpoint, slices_to_save(), optimizer_facts_,
                                   learnt_.state);
  }
  return checkpoint::save_shared_checkpoint(group_, job_.checkpoint, whole_, *optimizer_,
                                            learnt_.state);
}

KeptPieces TrainedModel::kept_pieces() const {
  return train::kept_pieces(whole_, sharded_.get(), tensor_.get());
}

task::ModelState TrainedModel::kept_whole() const {
  return train::kept_whole(whole_, sharded_.get());
}

/// If several ranks keep the same part, the first of them gives it.
checkpoint::OwnSlices TrainedModel::slices_to_save() {
  const bool first = mesh_ ? mesh_->place().replica == 0 : group_.rank() == 0;
  auto own = own_slices(kept_pieces(), *optimizer_, [&](const KeptPiece& piece) {
    return (first || sharded_) && sync_.counts(piece.tensor);
  });
  if (first && (!mesh_ || mesh_->place().tensor == 0)) add_whole(own, kept_whole());
  if (sharded_) own.written = [this] { sharded_->let_go_of_kept(); };
  return own;
}

/// Nothing if there is not the room for copies.
std::function<std::filesystem::path()> TrainedModel::copy_to_save() {
  const auto& config = job_.checkpoint;
  if (sharded_ || mesh_) {
    auto own = slices_to_save();
    own.written = [] {};
    std::vector<torch::Tensor*> tensors;
    for (auto* const slices : {&own.model, &own.optimizer}) {
      for (auto& slice : *slices) tensors.push_back(&slice.values);
    }
    if (!copy_to_host(tensors)) return {};
    return [own, config, group = group_of_saves_, facts = optimizer_facts_, state = learnt_.state] {
      return checkpoint::save_slices(group, config, own, facts, state);
    };
  }
  if (group_.rank() != 0) {
    return [path = checkpoint::checkpoint_path(config.dir, learnt_.state.step)] { return path; };
  }
  auto contents = checkpoint::contents_of(whole_, *optimizer_, learnt_.state);
  std::vector<torch::Tensor*> tensors, in_updates;
  const task::ModelState state(whole_);
  for (auto& [name, tensor] : contents.model) {
    const bool learns = std::ranges::find(state.parameters, name, &task::NamedTensor::name) !=
                        state.parameters.end();
    (learns ? in_updates : tensors).push_back(&tensor);
  }
  for (auto& [name, tensor] : contents.optimizer) in_updates.push_back(&tensor);
  auto copies = copy_to_host(tensors, in_updates);
  if (!copies) return {};
  const auto copied = std::make_shared<std::promise<void>>();
  copied_ = copied->get_future();
  return [contents, config, copied, copies = std::make_shared<std::vector<Copy>>(*copies)] {
    make_copies(*copies);
    copies->clear();
    copied->set_value();
    return checkpoint::save_contents(config.dir, contents, config.keep);
  };
}

void TrainedModel::wait_for_copies() {
  if (copied_.valid()) std::exchange(copied_, {}).wait();
}

std::function<std::filesystem::path()> TrainedModel::save_later() {
  if ((sharded_ || mesh_) && !group_of_saves_) group_of_saves_ = comm::group_of_its_own(group_);
  std::function<std::filesystem::path()> write;
  const auto& zero = job_.zero;  // in which ranks may differ
  const bool on_disk = zero.offload_parameters == "disk" || zero.offload_optimizer == "disk";
  const auto refused = device::without_memory_for(torch::kCPU, [&] {
    if (!on_disk) write = copy_to_save();
  });
  std::array<int, 1> copied = {!refused && write};
  group_
      .all_reduce(comm::buffer(std::span(copied)), comm::ReduceOp::min,
                  Deadline::after(milliseconds_of(job_.parallel.timeout_s)))
      .wait();
  return copied[0] != 0 ? write : nullptr;
}

/// The rank with the copy of the lost shard gives it, with its own.
std::filesystem::path TrainedModel::save_without(int lost, comm::Group left, int busiest) {
  const auto timeout = milliseconds_of(job_.parallel.timeout_s);
  parallel::broadcast_tensors(task::tensors_of(kept_whole().buffers), busiest, left,
                              static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20)),
                              timeout);
  const bool for_lost = sharded_->copy_of() == lost;
  auto own = own_slices(kept_pieces(), *optimizer_, [&](const KeptPiece& piece) {
    return for_lost || sync_.counts(piece.tensor);
  });
  if (left.rank() == 0) add_whole(own, kept_whole());
  std::filesystem::path path;
  comm::do_watched(left, timeout, "what a lost rank had was being saved", [&] {
    path = checkpoint::save_slices(left, job_.checkpoint, own, optimizer_facts_, learnt_.state);
  });
  return path;
}

void TrainedModel::require_finite(comm::Group among) const {
  const auto timeout = milliseconds_of(job_.parallel.timeout_s);
  if (!sharded_) {
    return checkpoint::require_finite_parameters(among, whole_, learnt_.state.step, timeout);
  }
  task::ModelState kept;
  for (const auto& piece : sharded_->pieces()) {
    kept.parameters.push_back({piece.parameter, piece.tensor});
  }
  checkpoint::require_finite_parameters(among, kept, learnt_.state.step, timeout);
}

}  // namespace bimetal::train
