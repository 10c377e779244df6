#include "bimetal/parallel/server/codec/push_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_codec.h"
#include "bimetal/comm/compress/error_feedback.h"
#include "bimetal/comm/compress/low_rank.h"
#include "bimetal/comm/compress/top_k.h"

namespace bimetal::parallel::server {
namespace {

void check_options(const PushCompression& how) {
  comm::Compression same;
  same.scheme = how.scheme;
  same.density = how.density;
  same.rank = how.rank;
  comm::tag_of(same, 0, comm::DType::float32, comm::ReduceOp::sum);
}

std::vector<std::byte> bytes_of(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

PushCodec::PushCodec(const PushCompression& how, const std::vector<torch::Tensor>& parameters)
    : how_(how) {
  if (how_.scheme == comm::Scheme::none) return;
  check_options(how_);
  for (const auto& parameter : parameters) {
    if (parameter.scalar_type() != torch::kFloat32) {
      throw Error(ErrorCode::Unsupported,
                  "parameter servers take compressed gradients of float32 alone");
    }
    Memory& memory = memories_.emplace_back();
    memory.shape = matrix_of(parameter);
    memory.residual.resize(memory.shape.count());
  }
}

PushCodec::Encoded PushCodec::encode(std::size_t tensor, const Piece& piece,
                                     std::span<const std::byte> gradient) {
  if (how_.scheme == comm::Scheme::none) return {};
  Memory& memory = memories_[tensor];
  const auto count = static_cast<std::size_t>(piece.count);
  const auto residual =
      std::span(memory.residual).subspan(static_cast<std::size_t>(piece.offset), count);
  const std::span values(reinterpret_cast<const float*>(gradient.data()), count);
  PushForm form{.scheme = how_.scheme, .detail = 0};
  std::vector<std::byte> encoded;
  if (how_.scheme == comm::Scheme::topk) {
    const auto density = comm::warmup_density(how_.density, step_, how_.warmup_steps);
    form.detail = static_cast<std::uint32_t>(comm::kept_elements(density, count));
    encoded = keep_largest(values, residual, form.detail);
  } else if (how_.scheme == comm::Scheme::powersgd) {
    const bool whole = count == memory.shape.count();
    const int rank = whole ? comm::columns_that_pay(memory.shape, how_.rank) : 0;
    if (rank == 0) return {};
    form.detail = static_cast<std::uint32_t>(rank);
    encoded = keep_factors(values, memory, rank, tensor);
  } else {
    encoded = keep_all(values, residual);
  }
  return {form, std::make_shared<const std::vector<std::byte>>(std::move(encoded))};
}

std::vector<std::byte> PushCodec::keep_all(std::span<const float> gradient,
                                           std::span<float> residual) const {
  std::vector<float> wanted(gradient.begin(), gradient.end()), sent(gradient.size());
  comm::add(wanted, residual);
  std::vector<std::byte> encoded(comm::encoded_bytes(how_.scheme, gradient.size()));
  comm::encode(how_.scheme, wanted, encoded);
  comm::decode(how_.scheme, encoded, sent);
  comm::remember_lost(wanted, sent, 1.0f, residual);
  return encoded;
}

std::vector<std::byte> PushCodec::keep_largest(std::span<const float> gradient,
                                               std::span<float> residual, std::size_t count) const {
  comm::add(residual, gradient);
  const auto chosen = comm::largest_elements(residual, count);
  std::vector<std::byte> encoded(comm::list_bytes(count));
  comm::encode_list(residual, chosen, encoded);
  for (const auto i : chosen) residual[i] = 0;
  // Those that are not finite go first, so that the server drops the lease; nothing of it comes
  // back with the next one.
  comm::forget_not_finite(residual);
  return encoded;
}

std::vector<std::byte> PushCodec::keep_factors(std::span<const float> gradient, Memory& memory,
                                               int rank, std::size_t tensor) const {
  const auto shape = memory.shape;
  const auto columns = static_cast<std::size_t>(rank);
  comm::add(memory.residual, gradient);
  std::vector<float> factors((shape.rows + shape.cols) * columns);
  const auto p = std::span(factors).first(shape.rows * columns);
  const auto q = std::span(factors).subspan(p.size());
  if (memory.basis.empty()) {
    memory.basis.resize(q.size());
    comm::make_basis(memory.basis, shape.cols, rank, tensor << 8);
  }
  comm::multiply(memory.residual, shape, rank, memory.basis, p);
  comm::orthogonalize(p, shape.rows, rank);
  comm::multiply_transposed(memory.residual, shape, rank, p, q);
  std::vector<float> sent(shape.count());
  comm::reconstruct(shape, rank, p, q, q, sent, memory.residual);
  comm::forget_not_finite(memory.residual);
  memory.basis.assign(q.begin(), q.end());
  comm::make_basis(memory.basis, shape.cols, rank, tensor << 8);
  return bytes_of(factors);
}

}  // namespace bimetal::parallel::server
