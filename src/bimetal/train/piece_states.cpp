#include "bimetal/train/piece_states.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/parallel/shard/flat_parameters.h"

namespace bimetal::train {
namespace {

using checkpoint::OwnSlice;
using checkpoint::Slice;
using checkpoint::TensorMap;
using parallel::shard::Piece;
using parallel::shard::ShardedModel;

constexpr std::string_view kSteps =
    "step";  // the one field that is a number for all of a parameter
constexpr const char* kOrigin = "the checkpoint's part for this rank";

std::string name_of(const Piece& piece) {
  return fmt::format("{}@{}", piece.parameter, piece.range.offset);
}

Slice slice_of(const Piece& piece) {
  return checkpoint::flat_range(piece.range.offset, piece.range.count);
}

/// The pieces as a model's parameters, so that what knows models knows them.
task::ModelState as_model(const ShardedModel& sharded) {
  task::ModelState model;
  for (const auto& piece : sharded.pieces()) {
    model.parameters.push_back({name_of(piece), piece.tensor});
  }
  return model;
}

/// "exp_avg" of "<parameter>.exp_avg" and so on: calls `visit(field, value)` for each that `map`
/// has of a parameter or a piece.
template <typename Map, typename Visit>
void visit_fields(const Map& map, const std::string& owner, Visit visit) {
  const auto prefix = owner + ".";
  for (auto next = map.lower_bound(prefix); next != map.end() && next->first.starts_with(prefix);
       ++next) {
    const auto field = next->first.substr(prefix.size());
    if (field.find('.') == std::string::npos) visit(field, next->second);
  }
}

/// Names of the parameters that are cut up and have elements.
std::set<std::string> cut_names(const ShardedModel& sharded) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : sharded.trained()) {
    if (tensor.numel() > 0) names.insert(name);
  }
  return names;
}

[[noreturn]] void refuse_state(const std::string& name, const std::string& flaw) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} does not fit this optimizer: '{}' {}", kOrigin, name, flaw));
}

/// All states must be of parameters that there are.
void require_known_states(const checkpoint::TensorIndex& states, const ShardedModel& sharded) {
  const auto known = cut_names(sharded);
  for (const auto& [name, tensor] : states) {
    if (!known.contains(name.substr(0, name.rfind('.')))) {
      refuse_state(name, "is of no parameter here");
    }
  }
}

}  // namespace

checkpoint::OwnSlices own_slices(const ShardedModel& sharded, const task::ModelState& model,
                                 const torch::optim::Optimizer& of_pieces) {
  checkpoint::OwnSlices own;
  TensorMap learnt;
  if (!sharded.pieces().empty()) {
    learnt = checkpoint::optimizer_tensors(of_pieces, as_model(sharded));
  }
  for (const auto& piece : sharded.pieces()) {
    own.model.push_back({piece.parameter, piece.shape, slice_of(piece), piece.tensor});
    visit_fields(learnt, name_of(piece), [&](const std::string& field, const auto& values) {
      OwnSlice state{piece.parameter + "." + field, piece.shape, slice_of(piece), values};
      if (field == kSteps) state.shape.clear(), state.slice = checkpoint::whole_slice({});
      own.optimizer.push_back(std::move(state));
    });
  }
  if (sharded.group().rank() != 0) return own;
  const auto cut = cut_names(sharded);
  for (const auto& [name, tensor] : checkpoint::model_tensors(model)) {
    if (cut.contains(name)) continue;
    const auto shape = tensor.sizes().vec();
    own.model.push_back({name, shape, checkpoint::whole_slice(shape), tensor});
  }
  return own;
}

void take_uncut(checkpoint::OpenCheckpoint& saved, const task::ModelState& model) {
  const torch::NoGradGuard no_grad;
  const auto take = [&](const task::NamedTensor& named) {
    torch::Tensor(named.tensor).copy_(saved.read(named.name, saved.index().model.at(named.name)));
  };
  for (const auto& buffer : model.buffers) take(buffer);
  for (const auto& parameter : model.parameters) {
    if (!parameter.tensor.requires_grad()) take(parameter);
  }
}

void take_pieces(checkpoint::SharedReader& saved, const ShardedModel& sharded,
                 torch::optim::Optimizer& of_pieces) {
  const torch::NoGradGuard no_grad;
  require_known_states(saved.index().optimizer, sharded);
  TensorMap states;
  saved.each_takes([&](const checkpoint::SharedReader::Read& read) {
    for (const auto& piece : sharded.pieces()) {
      torch::Tensor(piece.tensor).copy_(read.model(piece.parameter, slice_of(piece)));
      sharded.let_go_of_kept();
      visit_fields(saved.index().optimizer, piece.parameter,
                   [&](const std::string& field, const checkpoint::StoredTensor& stored) {
                     const auto name = piece.parameter + "." + field;
                     const bool number = field == kSteps;
                     if (stored.shape != (number ? std::vector<std::int64_t>{} : piece.shape)) {
                       refuse_state(name, "is of another shape");
                     }
                     states[name_of(piece) + "." + field] = read.optimizer(
                         name, number ? checkpoint::whole_slice({}) : slice_of(piece));
                   });
    }
  });
  if (sharded.pieces().empty()) return;
  of_pieces.state() = checkpoint::optimizer_states(states, of_pieces, as_model(sharded), kOrigin);
}

void take_drawn(const std::function<void(const task::UnitMade& made)>& values,
                const ShardedModel& sharded) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, const Piece*> pieces;
  for (const auto& piece : sharded.pieces()) pieces[piece.parameter] = &piece;
  values([&](const task::Unit& unit) {
    for (const auto& [name, tensor] : unit.parameters) {
      if (const auto found = pieces.find(name); found != pieces.end()) {
        const auto& piece = *found->second;
        torch::Tensor(piece.tensor)
            .copy_(tensor.flatten().narrow(0, piece.range.offset, piece.range.count));
      }
      parallel::shard::hollow_out(tensor);
    }
    sharded.let_go_of_kept();
  });
}

}  // namespace bimetal::train
