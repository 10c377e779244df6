#include "bimetal/checkpoint/parts/kept_pieces.h"

#include <torch/torch.h>

#include <utility>

namespace bimetal::checkpoint {

KeptPieces whole_pieces(const task::ModelState& model) {
  KeptPieces pieces;
  for (const auto& [name, tensor] : model.parameters) {
    const auto shape = tensor.sizes().vec();
    pieces.push_back({name, shape, {whole_slice(shape)}, 0, tensor});
  }
  return pieces;
}

KeptPieces part_pieces(const task::ModelState& model, const parallel::tensor::Cuts& cuts,
                       int rank) {
  auto pieces = whole_pieces(model);
  for (auto& piece : pieces) {
    if (!cuts.has(piece.parameter)) continue;
    piece.shape = cuts.sizes(piece.parameter);
    piece.slices.clear();
    const auto [dim, places] = cuts.places(piece.parameter, rank);
    piece.dim = dim;
    for (const auto& [first, count] : places) {
      auto slice = whole_slice(piece.shape);
      slice.offset[static_cast<std::size_t>(dim)] = first;
      slice.size[static_cast<std::size_t>(dim)] = count;
      piece.slices.push_back(std::move(slice));
    }
  }
  return pieces;
}

torch::Tensor join_slices(const KeptPiece& piece,
                          const std::function<torch::Tensor(const Slice& wanted)>& read) {
  if (piece.slices.size() == 1) return read(piece.slices.front());
  std::vector<torch::Tensor> parts;
  for (const auto& slice : piece.slices) parts.push_back(read(slice));
  return torch::cat(parts, piece.dim);
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
