#include "bimetal/checkpoint/parts/part_slices.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace bimetal::checkpoint {
namespace {

using parallel::shard::Range;
using parallel::tensor::PartPlaces;
using Sizes = std::vector<std::int64_t>;

std::int64_t product(Sizes::const_iterator first, Sizes::const_iterator last) {
  return std::accumulate(first, last, std::int64_t{1}, std::multiplies<>());
}

/// The part seen as rows: the elements behind the first `dim` dimensions are together.
class Rows {
 public:
  Rows(const Sizes& sizes, const PartPlaces& where)
      : sizes_(sizes),
        where_(where),
        inner_(product(sizes.begin() + where.dim + 1, sizes.end())),
        whole_row_(sizes[static_cast<std::size_t>(where.dim)] * inner_) {
    for (const auto& place : where.places) row_ += place.count * inner_;
  }

  std::int64_t size() const { return row_; }

  /// Elements [begin, end) of row `row`.
  KeptBlock some_of(std::int64_t row, std::int64_t begin, std::int64_t end) const {
    KeptBlock block{.shape = {end - begin}, .dim = 0, .slices = {}};
    std::int64_t here = 0;
    for (const auto& place : where_.places) {
      const auto from = std::max(begin, here), to = std::min(end, here + place.count * inner_);
      const auto there = row * whole_row_ + place.first * inner_ + from - here;
      if (from < to) block.slices.push_back(flat_range(there, to - from));
      here += place.count * inner_;
    }
    return block;
  }

  /// All of rows [first, last), which are of a part that is cut along dimension 1.
  KeptBlock all_of(std::int64_t first, std::int64_t last) const {
    auto sizes = sizes_;
    sizes[0] = last - first;
    auto block = block_of_part(sizes, where_);
    for (auto& slice : block.slices) slice.offset[0] = first;
    return block;
  }

 private:
  const Sizes& sizes_;
  const PartPlaces& where_;
  std::int64_t inner_;
  std::int64_t whole_row_;  ///< elements of the whole tensor's
  std::int64_t row_ = 0;    ///< of the part's
};

}  // namespace

KeptBlock block_of_part(const Sizes& sizes, const PartPlaces& where) {
  const auto dim = static_cast<std::size_t>(where.dim);
  KeptBlock block{.shape = sizes, .dim = where.dim, .slices = {}};
  block.shape[dim] = 0;
  for (const auto& [first, count] : where.places) {
    auto slice = whole_slice(sizes);
    slice.offset[dim] = first;
    slice.size[dim] = count;
    block.shape[dim] += count;
    block.slices.push_back(std::move(slice));
  }
  return block;
}

std::vector<KeptBlock> blocks_of_part(const Sizes& sizes, const PartPlaces& where,
                                      const Range& range) {
  const Rows rows(sizes, where);
  std::vector<KeptBlock> blocks;
  const auto end = range.offset + range.count;
  for (auto next = range.offset; next < end;) {
    const auto row = next / rows.size(), begin = next % rows.size();
    const auto whole = begin == 0 ? (end - next) / rows.size() : 0;
    if (whole > 0 && where.dim == 1) {
      blocks.push_back(rows.all_of(row, row + whole));
      next += whole * rows.size();
    } else {
      const auto stop = std::min(rows.size(), begin + end - next);
      blocks.push_back(rows.some_of(row, begin, stop));
      next += stop - begin;
    }
  }
  return blocks;
}

KeptPieces whole_pieces(const task::ModelState& model) {
  KeptPieces pieces;
  for (const auto& [name, tensor] : model.parameters) {
    const auto shape = tensor.sizes().vec();
    pieces.push_back({name, shape, {{shape, 0, {whole_slice(shape)}}}, tensor});
  }
  return pieces;
}

KeptPieces part_pieces(const task::ModelState& model, const parallel::tensor::Cuts& cuts,
                       int rank) {
  auto pieces = whole_pieces(model);
  for (auto& piece : pieces) {
    const auto& name = piece.parameter;
    if (!cuts.has(name)) continue;
    piece.shape = cuts.sizes(name);
    piece.blocks = {block_of_part(piece.shape, cuts.places(name, rank))};
  }
  return pieces;
}

torch::Tensor join_slices(const KeptPiece& piece,
                          const std::function<torch::Tensor(const Slice& wanted)>& read) {
  std::vector<torch::Tensor> blocks;
  for (const auto& block : piece.blocks) {
    std::vector<torch::Tensor> parts;
    for (const auto& slice : block.slices) parts.push_back(read(slice));
    blocks.push_back(parts.size() == 1 ? parts.front() : torch::cat(parts, block.dim));
  }
  if (blocks.size() == 1) return blocks.front().reshape(piece.tensor.sizes());
  for (auto& block : blocks) block = block.flatten();
  return torch::cat(blocks);
}

void read_part(const parallel::ModelPart& part, const ReadSlice& read) {
  const torch::NoGradGuard no_grad;
  const task::ModelState own(part.stage.model);
  const auto pieces =
      part.tensor ? part_pieces(own, part.tensor->cuts(), part.tensor->ranks()->group().rank())
                  : whole_pieces(own);
  for (const auto& piece : pieces) {
    torch::Tensor(piece.tensor).copy_(join_slices(piece, [&](const Slice& wanted) {
      return read(piece.parameter, wanted);
    }));
  }
  for (const auto& [name, buffer] : own.buffers) {
    torch::Tensor(buffer).copy_(read(name, whole_slice(buffer.sizes())));
  }
}

}  // namespace bimetal::checkpoint
