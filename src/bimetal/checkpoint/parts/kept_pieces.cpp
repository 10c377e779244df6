#include "bimetal/checkpoint/parts/kept_pieces.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

namespace bimetal::checkpoint {

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
