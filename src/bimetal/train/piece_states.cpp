#include "bimetal/train/piece_states.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
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
  if (piece.tensor.sizes() == piece.shape) return checkpoint::whole_slice(piece.shape);
  return checkpoint::flat_range(piece.range.offset, piece.range.count);
}

/// The pieces as a model's parameters, so that what knows models knows them.
task::ModelState as_model(const KeptPieces& pieces) {
  task::ModelState model;
  for (const auto& piece : pieces) model.parameters.push_back({name_of(piece), piece.tensor});
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

[[noreturn]] void refuse_state(const std::string& name, const std::string& flaw) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} does not fit this optimizer: '{}' {}", kOrigin, name, flaw));
}

}  // namespace

KeptPieces whole_pieces(const task::ModelState& model) {
  KeptPieces pieces;
  for (const auto& [name, tensor] : model.parameters) {
    pieces.push_back({name, tensor.sizes().vec(), {0, tensor.numel()}, tensor});
  }
  return pieces;
}

task::ModelState uncut_of(task::ModelState model) {
  std::erase_if(model.parameters, [](const task::NamedTensor& parameter) {
    return parameter.tensor.requires_grad() && parameter.tensor.numel() > 0;
  });
  return model;
}

checkpoint::OwnSlices own_slices(const KeptPieces& pieces, const torch::optim::Optimizer& of_pieces,
                                 const std::function<bool(const Piece& piece)>& gives) {
  checkpoint::OwnSlices own;
  if (pieces.empty()) return own;
  const auto learnt = checkpoint::optimizer_tensors(of_pieces, as_model(pieces));
  for (const auto& piece : pieces) {
    if (!gives(piece)) continue;
    own.model.push_back({piece.parameter, piece.shape, slice_of(piece), piece.tensor});
    visit_fields(learnt, name_of(piece), [&](const std::string& field, const auto& values) {
      OwnSlice state{piece.parameter + "." + field, piece.shape, slice_of(piece), values};
      if (field == kSteps) state.shape.clear(), state.slice = checkpoint::whole_slice({});
      own.optimizer.push_back(std::move(state));
    });
  }
  return own;
}

void add_whole(checkpoint::OwnSlices& own, const task::ModelState& model) {
  for (const auto* tensors : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      const auto shape = tensor.sizes().vec();
      own.model.push_back({name, shape, checkpoint::whole_slice(shape), tensor});
    }
  }
}

void take_whole(checkpoint::SharedReader& saved, const task::ModelState& model) {
  const torch::NoGradGuard no_grad;
  saved.each_takes([&](const checkpoint::SharedReader::Read& read) {
    for (const auto* tensors : {&model.parameters, &model.buffers}) {
      for (const auto& [name, tensor] : *tensors) {
        torch::Tensor(tensor).copy_(read.model(name, checkpoint::whole_slice(tensor.sizes())));
      }
    }
  });
}

void require_known_states(const checkpoint::SharedReader& saved,
                          const std::vector<task::NamedTensor>& parameters) {
  std::set<std::string> known;
  for (const auto& parameter : parameters) known.insert(parameter.name);
  for (const auto& [name, tensor] : saved.index().optimizer) {
    if (!known.contains(name.substr(0, name.rfind('.')))) {
      refuse_state(name, "is of no parameter here");
    }
  }
}

void take_pieces(checkpoint::SharedReader& saved, const KeptPieces& pieces,
                 torch::optim::Optimizer& of_pieces, const std::function<void()>& taken) {
  const torch::NoGradGuard no_grad;
  TensorMap states;
  saved.each_takes([&](const checkpoint::SharedReader::Read& read) {
    for (const auto& piece : pieces) {
      torch::Tensor(piece.tensor).copy_(read.model(piece.parameter, slice_of(piece)));
      taken();
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
  if (pieces.empty()) return;
  of_pieces.state() = checkpoint::optimizer_states(states, of_pieces, as_model(pieces), kOrigin);
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
