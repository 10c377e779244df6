#include "bimetal/comm/compress/compression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/call.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {
namespace {

constexpr std::array<std::string_view, 8> kNames = {"none", "float16", "bfloat16", "int8",
                                                    "int4", "topk",    "powersgd", "sign"};

// CompressedLinks::between_islands in CompressionTag::code().
constexpr unsigned kBetweenIslands = 0x80;

// An index of topk has 32 bits.
constexpr std::size_t kMaxSparseElements = std::numeric_limits<std::uint32_t>::max();

template <typename... Args>
[[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::InvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

bool floating(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float64 || dtype == DType::float16 ||
         dtype == DType::bfloat16;
}

void check_topk(const Compression& compression, std::size_t count) {
  if (!(compression.density > 0 && compression.density <= 1)) {
    reject("topk needs a density above 0 and at most 1, not {}", compression.density);
  }
  if (!(compression.momentum >= 0 && compression.momentum < 1)) {
    reject("topk needs a momentum of at least 0 and below 1, not {}", compression.momentum);
  }
  if (count > kMaxSparseElements) {
    reject("topk takes at most {} elements at once, not {}", kMaxSparseElements, count);
  }
}

void check_powersgd(const Compression& compression, std::size_t count) {
  if (compression.rank < 1 || compression.rank > 255) {
    reject("powersgd needs a rank from 1 to 255, not {}", compression.rank);
  }
  if (compression.matrices.empty()) return;
  std::size_t left = count;
  for (const Matrix& matrix : compression.matrices) {
    if (matrix.rows == 0 || matrix.cols == 0 || matrix.cols > left / matrix.rows) {
      reject("powersgd was given a matrix of {} × {} that the buffer's {} elements do not hold",
             matrix.rows, matrix.cols, count);
    }
    left -= matrix.count();
  }
  if (left > 0) reject("powersgd's matrices leave {} of {} elements over", left, count);
}

void check_memory(const Compression& compression, std::size_t count) {
  if (!compression.memory) return;
  for (const auto* values : {&compression.memory->residual, &compression.memory->velocity}) {
    if (!values->empty() && values->size() != count) {
      reject("the error feedback is of a bucket with {} elements, this one has {}", values->size(),
             count);
    }
  }
}

// A digest of 24 bits of the matrices' shapes and the Q they start from, on which the factors
// depend, so that ranks notice when theirs differ.
std::uint32_t factor_bits(const Compression& compression) {
  Checksum sum;
  for (const Matrix& matrix : compression.matrices) {
    sum.take(matrix.rows);
    sum.take(matrix.cols);
  }
  // Between islands only those who stand for one have a Q.
  if (compression.memory && compression.links == CompressedLinks::all) {
    for (const float value : compression.memory->basis) {
      sum.take(std::bit_cast<std::uint32_t>(value));
    }
  }
  return static_cast<std::uint32_t>(sum.value() >> 40);
}

}  // namespace

std::string_view to_string(Scheme scheme) noexcept {
  const auto index = static_cast<std::size_t>(scheme);
  return index < kNames.size() ? kNames[index] : "unknown compression";
}

Scheme scheme_of(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) {
    reject("there is no compression '{}'; choose one of {}", name,
           std::accumulate(kNames.begin() + 1, kNames.end(), std::string(kNames.front()),
                           [](std::string text, std::string_view next) {
                             return std::move(text) + ", " + std::string(next);
                           }));
  }
  return static_cast<Scheme>(found - kNames.begin());
}

std::string_view to_string(CompressedLinks links) noexcept {
  return links == CompressedLinks::all ? "all" : "between_islands";
}

CompressedLinks compressed_links_of(std::string_view name) {
  for (const auto links : {CompressedLinks::all, CompressedLinks::between_islands}) {
    if (name == to_string(links)) return links;
  }
  reject("compressed links are 'all' or 'between_islands', not '{}'", name);
}

std::uint8_t CompressionTag::code() const noexcept {
  const auto byte = static_cast<unsigned>(scheme);
  return static_cast<std::uint8_t>(links == CompressedLinks::all ? byte : byte | kBetweenIslands);
}

CompressionTag CompressionTag::from(std::uint8_t code, std::uint32_t detail) noexcept {
  const bool between = (code & kBetweenIslands) != 0;
  return {static_cast<Scheme>(code & ~kBetweenIslands),
          between ? CompressedLinks::between_islands : CompressedLinks::all, detail};
}

std::size_t kept_elements(double density, std::size_t count) {
  if (count == 0) return 0;
  const double wanted = std::ceil(density * static_cast<double>(count));
  return std::clamp<std::size_t>(static_cast<std::size_t>(wanted), 1, count);
}

CompressionTag tag_of(const Compression& compression, std::size_t count, DType dtype, ReduceOp op) {
  if (compression.scheme == Scheme::none) return {};
  if (static_cast<std::size_t>(compression.scheme) >= kNames.size()) {
    reject("unknown compression ({})", static_cast<int>(compression.scheme));
  }
  if (!floating(dtype)) {
    reject(
        "{} data is never compressed, since nothing of it may be lost; {} is for "
        "floating-point data",
        to_string(dtype), to_string(compression.scheme));
  }
  if (op != ReduceOp::sum && op != ReduceOp::avg) {
    reject("{} compresses sums and averages, not {}", to_string(compression.scheme), to_string(op));
  }
  check_memory(compression, count);
  CompressionTag tag{compression.scheme, compression.links};
  if (compression.scheme == Scheme::topk) {
    check_topk(compression, count);
    tag.detail = static_cast<std::uint32_t>(kept_elements(compression.density, count));
  }
  if (compression.scheme == Scheme::powersgd) {
    check_powersgd(compression, count);
    tag.detail = static_cast<std::uint32_t>(compression.rank) | factor_bits(compression) << 8;
  }
  return tag;
}

std::string describe(const CompressionTag& tag) {
  std::string text(to_string(tag.scheme));
  if (tag.scheme == Scheme::topk) text += fmt::format(" with {} elements per rank", tag.detail);
  if (tag.scheme == Scheme::powersgd) {
    text += fmt::format(" of rank {} on factors {:06x}", tag.detail & 0xff, tag.detail >> 8);
  }
  if (tag.links == CompressedLinks::between_islands) text += " between islands";
  return text;
}

namespace {

// Without a branch, so that loops vectorise.
float finite_or_zero(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>(choose((bits & 0x7f800000u) == 0x7f800000u, 0u, bits));
}

void add_all(float* __restrict values, const float* __restrict residual, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] += residual[i];
}

void subtract_all(const float* __restrict wanted, const float* __restrict sent, float weight,
                  float* __restrict residual, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    residual[i] = finite_or_zero(weight * (wanted[i] - sent[i]));
  }
}

void add_momentum(const float* __restrict gradient, float momentum, float* __restrict velocity,
                  float* __restrict residual, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity[i] + gradient[i];
    residual[i] += velocity[i];
  }
}

}  // namespace

void add(std::span<float> values, std::span<const float> residual) {
  add_all(values.data(), residual.data(), values.size());
}

void remember_lost(std::span<const float> wanted, std::span<const float> sent, float weight,
                   std::span<float> residual) {
  subtract_all(wanted.data(), sent.data(), weight, residual.data(), residual.size());
}

namespace {

// A value that is not finite has every bit of its exponent set: adding the exponent's lowest bit
// then carries into the sign. No branch and no comparison, so that the loop vectorises for any
// processor.
template <typename Bits, Bits kExponent, typename Value>
bool finite_bits(std::span<const Value> values) noexcept {
  constexpr Bits kLowest = kExponent & (~kExponent + 1);
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  Bits seen = 0;
  for (const Value value : values) seen |= (std::bit_cast<Bits>(value) & kExponent) + kLowest;
  return (seen & kSign) == 0;
}

}  // namespace

bool all_finite(std::span<const float> values) noexcept {
  return finite_bits<std::uint32_t, 0x7f800000u>(values);
}

bool all_finite(std::span<const double> values) noexcept {
  return finite_bits<std::uint64_t, 0x7ff0000000000000u>(values);
}

void forget_not_finite(std::span<float> values) {
  for (float& value : values) value = finite_or_zero(value);
}

void add_with_momentum(std::span<const float> gradient, float momentum, std::span<float> velocity,
                       std::span<float> residual) {
  add_momentum(gradient.data(), momentum, velocity.data(), residual.data(), gradient.size());
}

}  // namespace bimetal::comm
