#include "bimetal/train/piece_states.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

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

using checkpoint::blocks_of_part;
using checkpoint::join_slices;
using checkpoint::KeptBlock;
using checkpoint::OwnSlice;
using checkpoint::Slice;
using checkpoint::TensorMap;
using parallel::shard::ShardedModel;

constexpr std::string_view kSteps =
    "step";  // the one field that is a number for all of a parameter
constexpr const char* kOrigin = "the checkpoint's part for this rank";

/// A rank may keep several pieces of one parameter.
std::string name_of(const KeptPiece& piece) {
  const auto& first = piece.blocks.front().slices.front();
  return fmt::format("{}@{}", piece.parameter, fmt::join(first.offset, ","));
}

/// The slices of `values`, which have the form of `piece`.
void add_slices(std::vector<OwnSlice>& own, const KeptPiece& piece, const std::string& name,
                const torch::Tensor& values) {
  const auto& only = piece.blocks.front();
  if (piece.blocks.size() == 1 && only.slices.size() == 1) {
    own.push_back({name, piece.shape, only.slices.front(), values});
    return;
  }
  std::int64_t first = 0;
  for (const auto& block : piece.blocks) {
    const auto count = checkpoint::elements_of(block.shape);
    const auto of_block = values.reshape({-1}).narrow(0, first, count).view(block.shape);
    first += count;
    std::int64_t here = 0;
    for (const auto& slice : block.slices) {
      const auto width = slice.size[static_cast<std::size_t>(block.dim)];
      own.push_back({name, piece.shape, slice, of_block.narrow(block.dim, here, width)});
      here += width;
    }
  }
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

KeptPieces shard_pieces(const std::vector<parallel::shard::Piece>& shards) {
  KeptPieces pieces;
  for (const auto& [parameter, shape, range, tensor, copy] : shards) {
    const KeptBlock block{{range.count}, 0, {checkpoint::flat_range(range.offset, range.count)}};
    pieces.push_back({parameter, shape, {block}, tensor});
  }
  return pieces;
}

KeptPieces shard_pieces(const std::vector<parallel::shard::Piece>& shards,
                        const parallel::tensor::Cuts& cuts, int rank) {
  auto pieces = shard_pieces(shards);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    auto& piece = pieces[i];
    if (!cuts.has(piece.parameter)) continue;
    piece.shape = cuts.sizes(piece.parameter);
    piece.blocks = blocks_of_part(piece.shape, cuts.places(piece.parameter, rank), shards[i].range);
  }
  return pieces;
}

KeptPieces kept_pieces(const task::ModelState& model, const ShardedModel* shards,
                       const parallel::tensor::TensorModel* parts) {
  const int rank = parts != nullptr ? parts->ranks()->group().rank() : 0;
  if (shards != nullptr && parts != nullptr) {
    return shard_pieces(shards->pieces(), parts->cuts(), rank);
  }
  if (shards != nullptr) return shard_pieces(shards->pieces());
  if (parts != nullptr) return part_pieces(model, parts->cuts(), rank);
  return whole_pieces(model);
}

task::ModelState kept_whole(task::ModelState model, const ShardedModel* shards) {
  if (shards != nullptr) return uncut_of(std::move(model));
  model.parameters.clear();
  return model;
}

task::ModelState uncut_of(task::ModelState model) {
  std::erase_if(model.parameters, [](const task::NamedTensor& parameter) {
    return parameter.tensor.requires_grad() && parameter.tensor.numel() > 0;
  });
  return model;
}

checkpoint::OwnSlices own_slices(const KeptPieces& pieces, const torch::optim::Optimizer& of_pieces,
                                 const std::function<bool(const KeptPiece& piece)>& gives) {
  checkpoint::OwnSlices own;
  if (pieces.empty()) return own;
  const auto learnt = checkpoint::optimizer_tensors(of_pieces, as_model(pieces));
  std::set<std::string> steps;  // of a parameter in several pieces they are given once
  for (const auto& piece : pieces) {
    if (!gives(piece)) continue;
    add_slices(own.model, piece, piece.parameter, piece.tensor);
    visit_fields(learnt, name_of(piece), [&](const std::string& field, const auto& values) {
      const auto name = piece.parameter + "." + field;
      if (field == kSteps) {
        if (!steps.insert(name).second) return;
        own.optimizer.push_back({name, {}, checkpoint::whole_slice({}), values});
      } else {
        add_slices(own.optimizer, piece, name, values);
      }
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
      torch::Tensor(piece.tensor).copy_(join_slices(piece, [&](const Slice& slice) {
        return read.model(piece.parameter, slice);
      }));
      taken();
      visit_fields(
          saved.index().optimizer, piece.parameter,
          [&](const std::string& field, const checkpoint::StoredTensor& stored) {
            const auto name = piece.parameter + "." + field;
            const bool number = field == kSteps;
            if (stored.shape != (number ? std::vector<std::int64_t>{} : piece.shape)) {
              refuse_state(name, "is of another shape");
            }
            const auto of_slice = [&](const Slice& slice) { return read.optimizer(name, slice); };
            states[name_of(piece) + "." + field] =
                number ? of_slice(checkpoint::whole_slice({})) : join_slices(piece, of_slice);
          });
    }
  });
  if (pieces.empty()) return;
  of_pieces.state() = checkpoint::optimizer_states(states, of_pieces, as_model(pieces), kOrigin);
}

void take_drawn(const std::function<void(const task::UnitMade& made)>& values,
                const ShardedModel& sharded) {
  const torch::NoGradGuard no_grad;
  std::multimap<std::string, const parallel::shard::Piece*> pieces;
  for (const auto& piece : sharded.pieces()) pieces.emplace(piece.parameter, &piece);
  values([&](const task::Unit& unit) {
    for (const auto& [name, tensor] : unit.parameters) {
      const auto [first, last] = pieces.equal_range(name);
      for (auto next = first; next != last; ++next) {
        const auto& piece = *next->second;
        torch::Tensor(piece.tensor)
            .copy_(tensor.flatten().narrow(0, piece.range.offset, piece.range.count));
      }
      parallel::shard::hollow_out(tensor);
    }
    sharded.let_go_of_kept();
  });
}

void take_drawn(const std::function<void(const task::UnitMade& made)>& values,
                const task::Model& part) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> own;
  for (const auto& [name, tensor] : part.named_parameters()) own.emplace(name, tensor);
  values([&](const task::Unit& unit) {
    for (const auto& [name, tensor] : unit.parameters) {
      const auto place = own.find(name);
      if (parallel::shard::is_hollow(tensor)) continue;  // a tied one, whose values have been taken
      if (place != own.end()) place->second.copy_(tensor);
      parallel::shard::hollow_out(tensor);
    }
  });
}

}  // namespace bimetal::train
