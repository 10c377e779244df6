#include "bimetal/train/pipeline/shard_states.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/shared_checkpoint.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::train {
namespace {

using checkpoint::TensorMap;
using parallel::shard::Piece;
using parallel::shard::ShardedModel;

constexpr const char* kStepField = "step";  // the one field that is a number for all of a parameter

std::string label_of(const Piece& piece) {
  return fmt::format("{}@{}", piece.parameter, piece.range.offset);
}

/// The pieces as a model's parameters, so that what knows models knows them.
task::ModelState pieces_as_model(const ShardedModel& sharded) {
  task::ModelState model;
  for (const auto& piece : sharded.pieces()) {
    model.parameters.push_back({label_of(piece), piece.tensor});
  }
  return model;
}

/// "exp_avg" of each "<piece>.exp_avg" that any rank has: what is gathered, in the same order
/// everywhere.
std::set<std::string> fields_of_all(const ShardedModel& sharded, const TensorMap& learnt) {
  std::string mine;
  for (const auto& [name, tensor] : learnt) mine += name.substr(name.rfind('.') + 1) + "\n";
  std::set<std::string> fields;
  for (const auto& text :
       comm::all_gather_text(sharded.group(), mine, Deadline::after(checkpoint::kFileTimeout))) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) fields.insert(line);
  }
  return fields;
}

/// How often each parameter has been stepped, and 1 more; 0 where it has no state yet. By whoever
/// has a piece of it: all of them have been stepped alike.
std::map<std::string, std::int64_t> counts_of_all(const ShardedModel& sharded,
                                                  const TensorMap& learnt) {
  std::map<std::string, std::int64_t> mine;
  for (const auto& [name, tensor] : sharded.trained()) mine[name] = 0;
  for (const auto& [name, tensor] : learnt) {
    auto& count = mine.at(name.substr(0, name.rfind('@')));
    const bool steps = name.ends_with(std::string(".") + kStepField);
    count = std::max(count, steps ? tensor.item<std::int64_t>() + 1 : std::int64_t{1});
  }
  std::vector<std::int64_t> numbers;
  for (const auto& [name, count] : mine) numbers.push_back(count);
  auto group = sharded.group();
  group
      .all_reduce(comm::buffer(std::span(numbers)), comm::ReduceOp::max,
                  Deadline::after(checkpoint::kFileTimeout))
      .wait();
  std::size_t i = 0;
  for (auto& [name, count] : mine) count = numbers[i++];
  return mine;
}

}  // namespace

void take_states(const torch::optim::Optimizer& whole, const task::ModelState& model,
                 const ShardedModel& sharded, torch::optim::Optimizer& of_pieces) {
  if (sharded.pieces().empty()) return;
  const auto learnt = checkpoint::optimizer_tensors(whole, model);
  TensorMap parts;
  for (const auto& piece : sharded.pieces()) {
    for (const auto& [field, part] : checkpoint::part_of_state(
             learnt, piece.parameter, piece.range.offset, piece.range.count)) {
      parts[label_of(piece) + "." + field] = part;
    }
  }
  of_pieces.state() = checkpoint::optimizer_states(parts, of_pieces, pieces_as_model(sharded),
                                                   "the checkpoint's part for this rank");
}

TensorMap gather_states(const ShardedModel& sharded, const torch::optim::Optimizer& of_pieces) {
  const auto pieces = pieces_as_model(sharded);
  const auto learnt =
      pieces.parameters.empty() ? TensorMap() : checkpoint::optimizer_tensors(of_pieces, pieces);
  const auto counts = counts_of_all(sharded, learnt);
  const auto fields = fields_of_all(sharded, learnt);
  TensorMap all;
  for (const auto& field : fields) {
    if (field == kStepField) continue;
    const auto part = [&](const Piece& piece) {
      const auto found = learnt.find(label_of(piece) + "." + field);
      return found == learnt.end() ? torch::Tensor() : found->second.to(torch::kCPU);
    };
    for (const auto& [name, whole] : sharded.gather(part, 0)) {
      if (counts.at(name) > 0) all[name + "." + field] = whole;
    }
  }
  const bool counted = fields.contains(kStepField);
  for (const auto& [name, count] : counts) {
    if (!counted || count == 0 || sharded.group().rank() != 0) continue;
    all[name + "." + kStepField] = torch::tensor(count - 1, torch::kInt64);
  }
  return all;
}

}  // namespace bimetal::train
