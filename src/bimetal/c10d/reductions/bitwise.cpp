#include "bimetal/c10d/reductions/bitwise.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/c10d/tensors/host_tensors.h"

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

}  // namespace bimetal::c10d
