#pragma once
// Whether all numbers are finite: one pass, without a temporary.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/comm/compress/compression.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

// The layout of a compressed gradient on its way to a server. This file alone defines its length,
// which both sides compute, and its meaning. Schemes: docs/compression.md. Pure functions.

struct PushForm {
  comm::Scheme scheme = comm::Scheme::none;
  /// topk: elements that are sent; powersgd: columns of the factors; otherwise 0.
  std::uint32_t detail = 0;
};

/// The matrix that powersgd makes of a piece. `piece`: float32; a whole tensor has its own shape, a
/// part of one is flat. Matrices are made of tensors as in the paper: the first dimension has the
/// rows.
comm::Matrix matrix_of(const torch::Tensor& piece);

/// Bytes of a gradient of that shape. Error(CorruptData) for a form that none can have.
std::size_t pushed_bytes(PushForm form, comm::Matrix shape);

/// Fills `values`, shape.count() of them, from pushed_bytes(form, shape) bytes. They may come from
/// anyone: Error(CorruptData) where they have no meaning.
void decode_push(PushForm form, comm::Matrix shape, std::span<const std::byte> encoded,
                 std::span<float> values);

// Compresses gradients before they are pushed, with error feedback: the loss is added to the next
// push.

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

  /// The training step, for the warm-up. Call it while nothing is encoded.
  void set_step(std::int64_t step) noexcept { step_ = step; }

  struct Encoded {
    PushForm form;
    std::shared_ptr<const std::vector<std::byte>> bytes;  ///< null: the gradient goes as it is
  };
  /// `gradient`: the piece's float32. powersgd shortens only pieces that are whole tensors, and
  /// only if its factors are shorter. Each worker shortens its own gradient, in one step of the
  /// power iteration (Vogels et al., NeurIPS 2019, Algorithm 1, with one worker).
  Encoded encode(std::size_t tensor, const Piece& piece, std::span<const std::byte> gradient);

 private:
  struct Memory {
    comm::Matrix shape;
    std::vector<float> residual;  ///< values not delivered yet; one per element
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

// Compresses parameters before they are pulled. They are whole values, not changes. Only the
// worker's copy is rounded; the server's own values are not. So no error adds up, and no feedback
// is needed.

/// Error(Unsupported) unless parameters of that type can be pulled so: float32 by float16, bfloat16
/// or int8, anything by none. Fewer bits suffice for gradients, whose errors are fed back, but not
/// for values.
void require_pull_scheme(comm::Scheme scheme, torch::ScalarType type);

/// The pieces of one shard, so written.
struct EncodedPieces {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> begins;  ///< per piece of the shard, and the end

  std::span<const std::byte> piece(std::size_t index) const {
    return std::span(bytes).subspan(begins[index], begins[index + 1] - begins[index]);
  }
};

/// The form of one server's pieces on the wire. Use from one thread.
class PullCodec {
 public:
  /// `flat`: the shard's values of version `version`; `pieces`: numbers within the plan. Made once
  /// per version and scheme, for all that ask.
  std::shared_ptr<const EncodedPieces> encode(comm::Scheme scheme, std::uint64_t version,
                                              const torch::Tensor& flat, const ShardPlan& plan,
                                              std::span<const std::uint32_t> pieces);

 private:
  struct Made {
    std::uint64_t version = 0;
    std::shared_ptr<EncodedPieces> pieces;
  };
  std::map<comm::Scheme, Made> made_;
};

}  // namespace bimetal::parallel::server
