#pragma once
// The layout of a compressed gradient on its way to a server. This file alone defines its length,
// which both sides compute, and its meaning. Schemes: docs/compression.md. Pure functions.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "bimetal/comm/compress/compression.h"

namespace bimetal::parallel::server {

struct PushForm {
  comm::Scheme scheme = comm::Scheme::none;
  /// topk: elements that are sent; powersgd: columns of the factors; otherwise 0.
  std::uint32_t detail = 0;
};

/// What powersgd takes a piece for. `piece`: float32; a whole tensor has its own shape, a part of
/// one is flat. Matrices are made of tensors as in the paper: the first dimension has the rows.
comm::Matrix matrix_of(const torch::Tensor& piece);

/// Bytes of a gradient of that shape. Error(CorruptData) for a form that none can have.
std::size_t pushed_bytes(PushForm form, comm::Matrix shape);

/// Fills `values`, shape.count() of them, from pushed_bytes(form, shape) bytes. They may come from
/// anyone: Error(CorruptData) where they have no meaning.
void decode_push(PushForm form, comm::Matrix shape, std::span<const std::byte> encoded,
                 std::span<float> values);

}  // namespace bimetal::parallel::server
