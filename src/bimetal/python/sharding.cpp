
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/device/probe.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/hooked_model.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

using parallel::shard::HookedModel;
using parallel::shard::Kept;
using parallel::shard::Piece;
using NamedTensors = std::vector<task::NamedTensor>;
/// Its name, trained parameters and buffers.
using UnitParts = std::tuple<std::string, NamedTensors, NamedTensors>;

task::Model model_of(const std::vector<UnitParts>& parts) {
  task::Model model;
  for (const auto& [name, parameters, buffers] : parts) {
    model.units.push_back({.name = name,
                           .parameters = parameters,
                           .buffers = buffers,
                           .forward = [](const task::Values& inputs) { return inputs; }});
  }
  return model;
}

Kept kept_named(const std::string& name) {
  if (name == "none") return Kept::OnDevice;
  if (name == "host") return Kept::OnHost;
  if (name == "disk") return Kept::OnDisk;
  throw Error(ErrorCode::InvalidArgument,
              "parameters cannot be offloaded to '" + name + "': none, host or disk");
}

std::unique_ptr<HookedModel> make_hooked(const ProcessGroup& process_group,
                                         const std::vector<UnitParts>& units, int level,
                                         std::vector<double> weights, std::size_t flat_bytes,
                                         const std::string& kept, const std::string& folder,
                                         std::int64_t keep_below, bool hollow) {
  const auto& group = process_group.group;
  return std::make_unique<HookedModel>(
      model_of(units), group,
      parallel::shard::ShardedModelOptions{.level = level,
                                           .weights = std::move(weights),
                                           .flat_bytes = flat_bytes,
                                           .kept = kept_named(kept),
                                           .folder = folder,
                                           .timeout = process_group.timeout,
                                           .hollow = hollow,
                                           .form = {.keep_below = keep_below}});
}

/// (name, the parameter's shape, first element, this rank's part as a leaf) of each.
std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::int64_t, torch::Tensor>>
pieces_of(HookedModel& model) {
  std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::int64_t, torch::Tensor>> all;
  for (const auto& piece : model.sharded().pieces()) {
    all.emplace_back(piece.parameter, piece.shape, piece.range.offset, piece.tensor);
  }
  return all;
}

NamedTensors gather(HookedModel& model, const std::vector<std::optional<torch::Tensor>>& parts,
                    std::optional<int> root) {
  const auto& pieces = model.sharded().pieces();
  if (parts.size() != pieces.size()) {
    throw Error(ErrorCode::InvalidArgument, "gather() needs something, or None, for each piece");
  }
  const auto part = [&](const Piece& piece) {
    return parts[static_cast<std::size_t>(&piece - pieces.data())].value_or(torch::Tensor());
  };
  return model.sharded().gather(part, root.value_or(parallel::shard::ShardedModel::kEveryRank));
}

double device_speed(const std::string& device) {
  return device::product_speed(torch::Device(device));
}

std::vector<double> memory_weights(const ProcessGroup& process_group, const std::string& device) {
  return parallel::shard::weights_by_memory(process_group.group, torch::Device(device),
                                            Deadline::after(process_group.timeout));
}

}  // namespace

void bind_sharding(Bindings& bindings) {
  bindings.function("device_speed", device_speed);
  bindings.function("memory_weights", memory_weights);
  bindings.function(
      "close_off", [](const torch::Tensor& tensor) { parallel::shard::close_off(tensor); },
      Lock::kept);
  bindings.function("give_memory", parallel::shard::give_memory, Lock::kept);
  Bindings::Class<HookedModel>(bindings, "HookedModel")
      .made_by(make_hooked)
      .property("pieces", pieces_of)
      .property("shard_bytes", [](HookedModel& model) { return model.sharded().shard_bytes(); })
      .method("forward_begins", &HookedModel::forward_begins)
      .method("forward_ends", &HookedModel::forward_ends)
      .method("enter", &HookedModel::enter)
      .method("leave", &HookedModel::leave)
      .property("pass_number", &HookedModel::pass)
      .method("backward_begins", &HookedModel::backward_begins)
      .method("backward_ends", &HookedModel::backward_ends)
      .method("finish", &HookedModel::finish)
      .property("has_gradients", &HookedModel::has_gradients)
      .method("after_update", &HookedModel::after_update)
      .method("end_passes", &HookedModel::end_passes)
      .method("hold_whole", &HookedModel::hold_whole)
      .method("let_go_of_whole", &HookedModel::let_go_of_whole)
      .method("gather", gather)
      .property("wait_seconds", &HookedModel::wait_seconds);
}

}  // namespace bimetal::python
