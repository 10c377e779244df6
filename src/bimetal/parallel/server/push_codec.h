#pragma once
// Shortens gradients before they are pushed, with error feedback: what is lost is added to what is
// pushed next.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

/// Pieces of different tensors may be encoded by different threads at once.
class PushCodec {
 public:
  /// Error(Unsupported) for a scheme that drops elements, or for parameters that are not float32.
  PushCodec(comm::Scheme scheme, const std::vector<torch::Tensor>& parameters);

  /// `gradient`: the piece's float32. Null where nothing is shortened.
  std::shared_ptr<const std::vector<std::byte>> encode(std::size_t tensor, const Piece& piece,
                                                       std::span<const std::byte> gradient);

 private:
  comm::Scheme scheme_;
  std::vector<std::vector<float>> residuals_;  ///< per tensor
};

}  // namespace bimetal::parallel::server
