// PowerSGD (Vogels et al. 2019, Algorithms 1 and 2) with warm start: two small exact all-reduces,
// of P with everything that is sent as it is, and of Q.
#include <algorithm>
#include <cmath>
#include <vector>

#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/compress/compressed_reduction.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/compress/low_rank.h"

namespace bimetal::comm {
namespace {

// Up to here the factors' latency weighs more than their bytes.
constexpr std::size_t kShortMessage = std::size_t{32} << 10;

void sum_exactly(Channel& channel, std::span<float> values) {
  const auto bytes = std::as_writable_bytes(values);
  if (bytes.size() <= kShortMessage) {
    return recursive_doubling_all_reduce(channel, bytes, DType::float32, ReduceOp::sum);
  }
  ring_all_reduce(channel, even_segments(bytes, channel.size(), DType::float32),
                  {DType::float32, ReduceOp::sum, channel.size()});
}

// A matrix's places in the buffer and among the factors.
struct Placed {
  Matrix shape;
  int rank;  // 0: sent as it is
  std::size_t at;
  std::size_t p_at;  // also of parts that are sent as they are
  std::size_t q_at;

  std::size_t p_count() const { return rank > 0 ? shape.rows * rank : shape.count(); }
  std::size_t q_count() const { return shape.cols * rank; }
};

// The whole buffer as one matrix, nearly square, and the rest.
std::vector<Matrix> folded(std::size_t count) {
  if (count == 0) return {};
  const auto rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(count)));
  const Matrix whole{rows, count / rows};
  std::vector<Matrix> matrices = {whole};
  if (whole.count() < count) matrices.push_back({1, count - whole.count()});
  return matrices;
}

std::vector<Placed> placed(const Compression& compression, std::size_t count) {
  std::vector<Placed> all;
  std::size_t at = 0, p_at = 0, q_at = 0;
  for (const Matrix& shape : compression.matrices.empty() ? folded(count) : compression.matrices) {
    const int rank = columns_that_pay(shape, compression.rank);
    const Placed& last = all.emplace_back(Placed{shape, rank, at, p_at, q_at});
    at += shape.count();
    p_at += last.p_count();
    q_at += last.q_count();
  }
  return all;
}

class LowRankReduction {
 public:
  LowRankReduction(Channel& channel, std::span<float> data, ReduceOp op,
                   const Compression& compression)
      : channel_(channel),
        data_(data),
        average_(op == ReduceOp::avg),
        memory_(compression.memory.get()),
        matrices_(placed(compression, data.size())) {
    std::size_t p_count = 0, q_count = 0;
    for (const Placed& matrix : matrices_) {
      p_count += matrix.p_count();
      q_count += matrix.q_count();
    }
    p_ = floats(p_count);
    q_ = floats(q_count);
  }

  void run() {
    start_basis();
    accumulate_residual();
    for (const Placed& matrix : matrices_) {
      if (matrix.rank > 0) {
        multiply(source(matrix), matrix.shape, matrix.rank, q(matrix), p(matrix));
      } else {
        std::ranges::copy(own(matrix), p(matrix).begin());
      }
    }
    sum_exactly(channel_, p_);
    for (const Placed& matrix : matrices_) {
      if (matrix.rank == 0) continue;
      orthogonalize(p(matrix), matrix.shape.rows, matrix.rank);
      multiply_transposed(source(matrix), matrix.shape, matrix.rank, p(matrix), q(matrix));
    }
    if (memory_) own_q_.assign(q_.begin(), q_.end());
    sum_exactly(channel_, q_);
    for (const Placed& matrix : matrices_) finish(matrix);
    keep_basis();
  }

 private:
  std::span<float> floats(std::size_t count) {
    return {reinterpret_cast<float*>(channel_.scratch(count * sizeof(float)).data()), count};
  }
  std::span<float> p(const Placed& m) const { return p_.subspan(m.p_at, m.p_count()); }
  std::span<float> q(const Placed& m) const { return q_.subspan(m.q_at, m.q_count()); }
  std::span<float> own(const Placed& m) const { return data_.subspan(m.at, m.shape.count()); }
  std::span<float> residual(const Placed& m) const {
    return std::span(memory_->residual).subspan(m.at, m.shape.count());
  }
  // The matrix to be compressed: with error feedback it is formed in the residual's place.
  std::span<const float> source(const Placed& m) const { return memory_ ? residual(m) : own(m); }

  void start_basis() {
    if (memory_ && memory_->basis.size() == q_.size()) {
      std::ranges::copy(memory_->basis, q_.begin());
      return;
    }
    std::ranges::fill(q_, 0.0f);
    new_directions(q_);
  }

  void new_directions(std::span<float> basis) const {
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      const Placed& m = matrices_[i];
      make_basis(basis.subspan(m.q_at, m.q_count()), m.shape.cols, m.rank, i << 8);
    }
  }

  void accumulate_residual() {
    if (!memory_) return;
    memory_->residual.resize(data_.size());
    for (const Placed& matrix : matrices_) {
      if (matrix.rank > 0) add(residual(matrix), own(matrix));
    }
  }

  void finish(const Placed& matrix) {
    const auto divide = [&](std::span<float> values) {
      const auto ranks = static_cast<float>(channel_.size());
      if (average_)
        std::ranges::transform(values, values.begin(), [&](float v) { return v / ranks; });
    };
    if (matrix.rank == 0) {
      divide(p(matrix));
      std::ranges::copy(p(matrix), own(matrix).begin());
      return;
    }
    divide(q(matrix));
    if (!memory_) {
      return reconstruct(matrix.shape, matrix.rank, p(matrix), q(matrix), {}, own(matrix), {});
    }
    const auto own_q = std::span<const float>(own_q_).subspan(matrix.q_at, matrix.q_count());
    reconstruct(matrix.shape, matrix.rank, p(matrix), q(matrix), own_q, own(matrix),
                residual(matrix));
    forget_not_finite(residual(matrix));
  }

  void keep_basis() {
    if (!memory_) return;
    memory_->basis.assign(q_.begin(), q_.end());
    new_directions(memory_->basis);
  }

  Channel& channel_;
  const std::span<float> data_;
  const bool average_;
  BucketMemory* const memory_;
  const std::vector<Placed> matrices_;
  std::span<float> p_;  // summed by the first all-reduce
  std::span<float> q_;
  std::vector<float> own_q_;  // before the sum: what of this rank's matrix gets across
};

}  // namespace

void low_rank_all_reduce(Channel& channel, std::span<float> data, ReduceOp op,
                         const Compression& compression) {
  if (channel.size() > 1) return LowRankReduction(channel, data, op, compression).run();
  if (!compression.memory || compression.memory->residual.empty()) return;
  add(data, compression.memory->residual);
  std::ranges::fill(compression.memory->residual, 0.0f);
}

}  // namespace bimetal::comm
