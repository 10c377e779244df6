#pragma once
// The ways in which an all-reduce may shorten its messages. docs/compression.md has bytes, error
// bounds and the source of each scheme.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/comm/dtype.h"

namespace bimetal::comm {

/// The numeric values are part of the wire format and never change.
enum class Scheme : std::uint8_t {
  /// Blocks with a scale each.
  /// Blocks with a scale each.
  /// The largest elements alone (Deep Gradient Compression).
  /// Matrices as products of rank r.
  /// One bit per element, blocks with a scale each.
  none = 0,
  float16 = 1,
  bfloat16 = 2,
  int8 = 3,
  int4 = 4,
  topk = 5,
  powersgd = 6,
  sign = 7,
};

std::string_view to_string(Scheme scheme) noexcept;  ///< its name

/// The scheme of that name. Error(InvalidArgument) lists them all.
Scheme scheme_of(std::string_view name);

/// Which messages are shortened.
enum class CompressedLinks : std::uint8_t {
  /// Those between ranks without memory in common (Group::topology()): the ranks of an island add
  /// up there first, exactly, and one of them stands for all.
  all,  ///< those between any two ranks
  between_islands,
};

std::string_view to_string(CompressedLinks links) noexcept;  ///< its name

/// "all" or "between_islands". Error(InvalidArgument) for anything else.
CompressedLinks compressed_links_of(std::string_view name);

/// `rows` × `cols` consecutive elements of a buffer, in row-major order.
struct Matrix {
  std::size_t rows = 0;  ///< of the matrix
  std::size_t cols = 0;  ///< of the matrix

  std::size_t count() const noexcept { return rows * cols; }  ///< elements
};

/// One rank's state of one bucket of gradients, kept from call to call. Made empty; the first call
/// gives it its sizes. It belongs to the call from its begin until its Work is done.
struct BucketMemory {
  std::vector<float> residual;  ///< values that this rank has not delivered yet; one per
                                ///< element
  std::vector<float> velocity;  ///< topk with momentum: its momentum; one per element
  std::vector<float> basis;  ///< powersgd: the matrices' Q, one after the other; alike everywhere
};

/// Compression of one call. All ranks name the same, memory apart; a rank that names another gets
/// CallMismatch, as it would for another count.
struct Compression {
  Scheme scheme = Scheme::none;                  ///< the form sent in place of the numbers
  CompressedLinks links = CompressedLinks::all;  ///< between which ranks

  /// topk: the share of elements that each rank sends, above 0, at most 1.
  double density = 0.001;
  /// topk: the optimizer's momentum, applied to each rank's gradients before the largest are chosen
  /// (momentum correction). The optimizer itself must then have none. From 0 to below 1.
  double momentum = 0;

  /// powersgd: columns of the factors, 1 to 255.
  int rank = 4;
  /// powersgd: the buffer's matrices in their order; those that would not get shorter (as a bias)
  /// are sent as they are. None: the whole buffer is folded into one matrix, nearly square.
  std::vector<Matrix> matrices = {};

  /// Error feedback: the loss of this call is added to the next one with the same memory. None:
  /// losses are final. Every rank has its own, and either all of them have one or none.
  std::shared_ptr<BucketMemory> memory = {};
};

/// Options for the same buckets, step after step (compressed_all_reduce.h).
struct CompressedAllReduceOptions {
  /// `memory` and `matrices` are left empty: they are each bucket's own.
  Compression compression = {};
  bool error_feedback = true;  ///< values that were not sent are added to the next message
  /// topk: over so many steps the density falls to compression.density (see warmup_density()).
  std::int64_t warmup_steps = 0;
};

/// The part of a call's compression that ranks compare.
struct CompressionTag {
  Scheme scheme = Scheme::none;                  ///< as Compression has it
  CompressedLinks links = CompressedLinks::all;  ///< as Compression has it
  std::uint32_t detail = 0;  ///< further facts that the scheme's messages depend on besides
                             ///< the count

  friend bool operator==(const CompressionTag&, const CompressionTag&) = default;

  /// Scheme and links in one byte of a frame's header, and back.
  std::uint8_t code() const noexcept;
  /// Reads the fields of a message's header.
  static CompressionTag from(std::uint8_t code, std::uint32_t detail) noexcept;
};

/// Elements that each rank sends by topk.
std::size_t kept_elements(double density, std::size_t count);

/// The tag of a call with `count` elements. Error(InvalidArgument) for calls that can never work:
/// integers, an operation other than sum and avg, a parameter outside its range, matrices that do
/// not add up to the buffer, memory of another size.
CompressionTag tag_of(const Compression& compression, std::size_t count, DType dtype, ReduceOp op);

/// "int8", "topk with 12 elements per rank", "powersgd of rank 4".
std::string describe(const CompressionTag& tag);

// Element-wise steps of error feedback (Seide et al., "1-Bit Stochastic Gradient Descent", 2014;
// Karimireddy et al., ICML 2019): the loss of one compression is added to the data of the next.

/// values[i] += residual[i].
void add(std::span<float> values, std::span<const float> residual);

/// residual[i] = weight × (wanted[i] - sent[i]), or 0 where that is not finite: a NaN that has got
/// across must not come back in the next step.
void remember_lost(std::span<const float> wanted, std::span<const float> sent, float weight,
                   std::span<float> residual);

/// No NaN and no infinity among them.
bool all_finite(std::span<const float> values) noexcept;
bool all_finite(std::span<const double> values) noexcept;  ///< whether none is infinite or NaN

/// Replaces values that are not finite by 0.
void forget_not_finite(std::span<float> values);

/// velocity[i] = momentum × velocity[i] + gradient[i]; residual[i] += velocity[i]. (Momentum
/// correction: Lin et al., ICLR 2018, §3.2.)
void add_with_momentum(std::span<const float> gradient, float momentum, std::span<float> velocity,
                       std::span<float> residual);

}  // namespace bimetal::comm
