#include "bimetal/parallel/server/codec/push_form.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_codec.h"
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

}  // namespace bimetal::parallel::server
