#include "bimetal/parallel/server/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compression.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/comm/compress/low_rank.h"
#include "bimetal/comm/compress/top_k.h"

namespace bimetal::parallel::server {
namespace {

[[noreturn]] void unknown_form() {
  throw Error(ErrorCode::CorruptData, "a gradient in a form that this server does not know");
}

/// First the factor of the rows, then that of the columns, each column by column.
void decode_factors(comm::Matrix shape, int rank, std::span<const std::byte> encoded,
                    std::span<float> values) {
  std::vector<float> factors(encoded.size() / sizeof(float));
  std::memcpy(factors.data(), encoded.data(), encoded.size());
  const auto rows = std::span(factors).first(shape.rows * static_cast<std::size_t>(rank));
  const auto cols = std::span(factors).subspan(rows.size());
  comm::reconstruct(shape, rank, rows, cols, {}, values, {});
}

}  // namespace

comm::Matrix matrix_of(const torch::Tensor& piece) {
  const auto count = static_cast<std::size_t>(piece.numel());
  if (piece.dim() < 2 || count == 0) return {1, count};
  const auto rows = static_cast<std::size_t>(piece.size(0));
  return {rows, count / rows};
}

std::size_t pushed_bytes(PushForm form, comm::Matrix shape) {
  if (form.scheme == comm::Scheme::topk) {
    if (form.detail == 0 || form.detail > shape.count()) unknown_form();
    return comm::list_bytes(form.detail);
  }
  if (form.scheme == comm::Scheme::powersgd) {
    const auto rank = static_cast<int>(std::min(form.detail, 256u));
    if (rank == 0 || comm::columns_that_pay(shape, rank) != rank) unknown_form();
    return sizeof(float) * (shape.rows + shape.cols) * static_cast<std::size_t>(rank);
  }
  if (!comm::is_dense(form.scheme) || form.detail != 0) unknown_form();
  return comm::encoded_bytes(form.scheme, shape.count());
}

void decode_push(PushForm form, comm::Matrix shape, std::span<const std::byte> encoded,
                 std::span<float> values) {
  if (form.scheme == comm::Scheme::topk) {
    std::ranges::fill(values, 0.0f);
    comm::add_list(encoded, values);
  } else if (form.scheme == comm::Scheme::powersgd) {
    decode_factors(shape, static_cast<int>(form.detail), encoded, values);
  } else {
    comm::decode(form.scheme, encoded, values);
  }
}

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

void require_pull_scheme(comm::Scheme scheme, torch::ScalarType type) {
  switch (scheme) {
    case comm::Scheme::none: return;
    case comm::Scheme::float16:
    case comm::Scheme::bfloat16:
    case comm::Scheme::int8: break;
    default:
      throw Error(ErrorCode::Unsupported,
                  fmt::format("parameters cannot be pulled by '{}'; take float16, bfloat16 or int8",
                              comm::to_string(scheme)));
  }
  if (type == torch::kFloat32) return;
  throw Error(ErrorCode::Unsupported, "parameter servers send float32 alone in a shorter form");
}

std::shared_ptr<const EncodedPieces> PullCodec::encode(comm::Scheme scheme, std::uint64_t version,
                                                       const torch::Tensor& flat,
                                                       const ShardPlan& plan,
                                                       std::span<const std::uint32_t> pieces) {
  require_pull_scheme(scheme, flat.scalar_type());
  Made& made = made_[scheme];
  if (made.pieces && made.version == version) return made.pieces;
  // An older version may still be on its way to somebody.
  if (!made.pieces || made.pieces.use_count() > 1) {
    made.pieces = std::make_shared<EncodedPieces>();
    std::size_t end = 0;
    for (const auto number : pieces) {
      made.pieces->begins.push_back(end);
      end += comm::encoded_bytes(scheme, static_cast<std::size_t>(plan.pieces[number].count));
    }
    made.pieces->begins.push_back(end);
    made.pieces->bytes.resize(end);
  }
  made.version = version;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = plan.pieces[pieces[i]];
    const auto begin = made.pieces->begins[i];
    comm::encode(
        scheme,
        {flat.const_data_ptr<float>() + piece.shard_offset, static_cast<std::size_t>(piece.count)},
        std::span(made.pieces->bytes).subspan(begin, made.pieces->begins[i + 1] - begin));
  }
  return made.pieces;
}

}  // namespace bimetal::parallel::server
