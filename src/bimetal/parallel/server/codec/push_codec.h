#pragma once
// Compresses gradients before they are pushed, with error feedback: the loss is added to the next
// push.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/server/codec/push_form.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

/// How a worker's gradients are shortened, for parameters of float32 alone.
struct PushCompression {
  comm::Scheme scheme = comm::Scheme::none;
  double density = 0.001;         ///< topk: the share of each piece's elements that is sent
  std::int64_t warmup_steps = 0;  ///< topk: see comm::warmup_density()
  int rank = 4;                   ///< powersgd: columns of the factors, 1 to 255
};

/// Pieces of different tensors may be encoded by different threads at once.
class PushCodec {
 public:
  /// Error(Unsupported) for parameters that are not float32; InvalidArgument for a density or a
  /// rank out of range.
  PushCodec(const PushCompression& how, const std::vector<torch::Tensor>& parameters);

  /// Where training stands, for the warm-up. While nothing is encoded.
  void set_step(std::int64_t step) noexcept { step_ = step; }

  struct Encoded {
    PushForm form;
    std::shared_ptr<const std::vector<std::byte>> bytes;  ///< null: the gradient goes as it is
  };
  /// `gradient`: the piece's float32. powersgd shortens pieces that are whole tensors, no others,
  /// and these where its factors are shorter: each worker its own gradient, in one step of the
  /// power iteration (Vogels et al., NeurIPS 2019, Algorithm 1, of one worker).
  Encoded encode(std::size_t tensor, const Piece& piece, std::span<const std::byte> gradient);

 private:
  struct Memory {
    comm::Matrix shape;
    std::vector<float> residual;  ///< what has not got across; one per element
    std::vector<float> basis;     ///< powersgd: the factor of the columns to begin with
  };
  std::vector<std::byte> keep_all(std::span<const float> gradient, std::span<float> residual) const;
  std::vector<std::byte> keep_largest(std::span<const float> gradient, std::span<float> residual,
                                      std::size_t count) const;
  std::vector<std::byte> keep_factors(std::span<const float> gradient, Memory& memory, int rank,
                                      std::size_t tensor) const;

  PushCompression how_;
  std::int64_t step_ = 0;
  std::vector<Memory> memories_;  ///< per tensor
};

}  // namespace bimetal::parallel::server
