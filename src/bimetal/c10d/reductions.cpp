#include "bimetal/c10d/reductions.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/c10d/host_tensors.h"

namespace bimetal::c10d {
namespace {

using Op = ::c10d::ReduceOp;

void combine(at::Tensor into, const at::Tensor& values, Op::RedOpType op) {
  switch (op) {
    case Op::BAND: into.bitwise_and_(values); break;
    case Op::BOR: into.bitwise_or_(values); break;
    default: into.bitwise_xor_(values); break;
  }
}

}  // namespace

bool is_bitwise(const Op& op, at::ScalarType type) {
  const Op::RedOpType kind = op;
  if (type == at::kBool) return kind == Op::BXOR;
  const bool bits = kind == Op::BAND || kind == Op::BOR || kind == Op::BXOR;
  return bits && at::isIntegralType(type, /*includeBool=*/false);
}

BitwiseReduction bitwise_reduction(const at::Tensor& host, const Op& op, int rank, int size,
                                   int root) {
  at::NoGradGuard no_grad;
  const Op::RedOpType kind = op;
  // The operation goes along: to the fabric it is a gathering like any other. (For bool: which of
  // two does not matter, there is one.)
  const auto code = at::full({1}, static_cast<int>(kind), host.options());
  const auto mine = at::cat({host.reshape({-1}), code});
  const bool wanted = root < 0 || root == rank;
  const auto all = at::empty({wanted ? size : 0, mine.numel()}, host.options());
  BitwiseReduction made;
  made.call = [mine, all, root](comm::Group& group, Deadline by) {
    return root < 0 ? group.all_gather(buffer_of(mine), buffer_of(all), by)
                    : group.gather(buffer_of(mine), buffer_of(all), root, by);
  };
  if (!wanted) {
    made.finish = [mine, all] {};  // they are read until then
    return made;
  }
  made.finish = [host, mine, all, kind, code] {
    const at::NoGradGuard quiet;
    for (std::int64_t other = 0; other < all.size(0); ++other) {
      if (all[other].slice(0, -1).equal(code)) continue;
      throw Error(ErrorCode::CallMismatch,
                  fmt::format("rank {} of the group reduces by another operation of bits", other),
                  static_cast<int>(other));
    }
    auto result = host.view({-1});
    result.copy_(all[0].slice(0, 0, -1));
    for (std::int64_t other = 1; other < all.size(0); ++other) {
      combine(result, all[other].slice(0, 0, -1), kind);
    }
  };
  return made;
}

namespace {

using Words = std::vector<std::int64_t>;

/// What a rank says before its indices and values; library/reductions.py says the same. The number
/// of values is the one word in which ranks may differ.
constexpr std::size_t kValuesWord = 0;
Words head_of(const at::Tensor& coalesced) {
  const auto element = element_type(coalesced.scalar_type());
  Words words{
      coalesced._nnz(),
      static_cast<std::int64_t>(element.dtype) * 16 + static_cast<std::int64_t>(element.per_value),
      coalesced.sparse_dim(), coalesced.dim()};
  words.insert(words.end(), coalesced.sizes().begin(), coalesced.sizes().end());
  return words;
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.cpu().resolve_conj().resolve_neg().contiguous().view({-1}).view(at::kByte);
}

/// This rank's part: head, indices, values.
at::Tensor packed(const at::Tensor& coalesced, const Reduction& reduction) {
  auto values = coalesced._values();
  if (reduction.factor.defined()) {
    values = values.cpu().clone();
    reduction.prepare(values);
  }
  const auto head = at::tensor(head_of(coalesced), at::kLong);
  auto bytes = at::cat({as_bytes(head), as_bytes(coalesced._indices()), as_bytes(values)});
  // Whole words, so that the next rank's begin at one, too.
  return at::constant_pad_nd(bytes, {0, (8 - bytes.numel() % 8) % 8});
}

/// A rank's part as a tensor on the CPU, in the memory of `part`.
at::Tensor unpacked(std::span<const std::byte> part, const at::Tensor& like, int from) {
  const Words mine = head_of(like);
  Words theirs(mine.size());
  const auto head_bytes = mine.size() * sizeof(std::int64_t);
  if (part.size() >= head_bytes) std::memcpy(theirs.data(), part.data(), head_bytes);
  const auto count = theirs[kValuesWord];
  theirs[kValuesWord] = mine[kValuesWord];
  if (theirs != mine) {
    throw Error(ErrorCode::CallMismatch,
                fmt::format("rank {} of the group all-reduces a sparse tensor of another shape or "
                            "type than this one's {} of {}",
                            from, fmt::join(like.sizes(), " x "), like.dtype().name()),
                from);
  }
  const auto options = at::TensorOptions().device(at::kCPU);
  auto* const at_indices = const_cast<std::byte*>(part.data()) + head_bytes;
  const Words indices_shape{like.sparse_dim(), count};
  Words values_shape = like._values().sizes().vec();
  values_shape[0] = count;
  const auto indices_bytes = static_cast<std::size_t>(like.sparse_dim() * count) * 8;
  const auto left = part.size() - head_bytes;
  const auto value_bytes = c10::multiply_integers(values_shape) * like.element_size();
  if (count < 0 || indices_bytes > left ||
      (indices_bytes + static_cast<std::size_t>(value_bytes) + 7) / 8 * 8 != left) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("rank {} of the group sent {} bytes for {} values of a sparse tensor",
                            from, part.size(), count),
                from);
  }
  const auto indices = at::from_blob(at_indices, indices_shape, options.dtype(at::kLong));
  const auto values =
      at::from_blob(at_indices + indices_bytes, values_shape, options.dtype(like.scalar_type()));
  return at::_sparse_coo_tensor_unsafe(indices, values, like.sizes())._coalesced_(true);
}

}  // namespace

SparseReduction sparse_reduction(const at::Tensor& tensor, const ::c10d::ReduceOp& op) {
  at::NoGradGuard no_grad;
  const auto reduction = reduction_for(op, tensor.scalar_type());
  const bool average = reduction.op == comm::ReduceOp::avg;
  if (!average && reduction.op != comm::ReduceOp::sum) {
    throw Error(ErrorCode::Unsupported, "sparse tensors can be summed and averaged alone");
  }
  const auto own = tensor.detach().coalesce();
  const auto mine = packed(own, reduction);
  const auto all = std::make_shared<comm::Gathered>();
  SparseReduction made;
  made.call = [mine, all](comm::Group& group, Deadline by) {
    const std::span bytes(static_cast<const std::byte*>(mine.const_data_ptr()), mine.nbytes());
    return group.all_gather_bytes(bytes, all, by);
  };
  made.finish = [tensor, own, mine, all, average] {
    const at::NoGradGuard quiet;
    at::Tensor sum;
    for (std::size_t rank = 0; rank < all->parts.size(); ++rank) {
      const auto part = unpacked(all->parts[rank], own, static_cast<int>(rank));
      sum = sum.defined() ? sum.add(part) : part;
    }
    sum = sum.coalesce();
    if (average) sum._values().div_(static_cast<std::int64_t>(all->parts.size()));
    at::Tensor(tensor).copy_(sum);  // not of a detached one, which would have its own values
  };
  return made;
}

}  // namespace bimetal::c10d
