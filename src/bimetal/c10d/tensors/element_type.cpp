#include "bimetal/c10d/tensors/element_type.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <string_view>

#include "bimetal/base/error.h"

namespace bimetal::c10d {
namespace {

using Op = ::c10d::ReduceOp;

std::string_view name_of(Op::RedOpType op) {
  switch (op) {
    case Op::SUM: return "SUM";
    case Op::AVG: return "AVG";
    case Op::PRODUCT: return "PRODUCT";
    case Op::MIN: return "MIN";
    case Op::MAX: return "MAX";
    case Op::BAND: return "BAND";
    case Op::BOR: return "BOR";
    case Op::BXOR: return "BXOR";
    case Op::PREMUL_SUM: return "PREMUL_SUM";
    default: return "unknown";
  }
}

[[noreturn]] void refuse(Op::RedOpType op, at::ScalarType type) {
  throw Error(ErrorCode::Unsupported,
              fmt::format("the reduction {} is not there for tensors of type {}", name_of(op),
                          c10::toString(type)));
}

comm::ReduceOp for_bool(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR: return comm::ReduceOp::max;
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND: return comm::ReduceOp::min;
    default: refuse(op, at::kBool);
  }
}

comm::ReduceOp for_number(Op::RedOpType op, at::ScalarType type) {
  const bool floating = at::isFloatingType(type);
  const bool complex = at::isComplexType(type);
  switch (op) {
    case Op::SUM:
    case Op::PREMUL_SUM: return comm::ReduceOp::sum;
    case Op::AVG:
      if (!floating && !complex) refuse(op, type);
      return comm::ReduceOp::avg;
    case Op::PRODUCT:
      if (complex) refuse(op, type);
      return comm::ReduceOp::product;
    case Op::MIN:
      if (complex) refuse(op, type);
      return comm::ReduceOp::min;
    case Op::MAX:
      if (complex) refuse(op, type);
      return comm::ReduceOp::max;
    default: refuse(op, type);
  }
}

// A tensor stays on its device until prepare() needs it: torch keeps it alive.
at::Tensor factor_of(const Op& op) {
  // The name that torch 2.11 to 2.13 all know it by; it has nothing to do with NCCL.
  using Factor = ::c10d::NCCLPreMulSumSupplement;
  const auto* premul = dynamic_cast<const Factor*>(op.supplement_.get());
  if (premul == nullptr) {
    throw Error(ErrorCode::InvalidArgument, "PREMUL_SUM came without its factor");
  }
  return premul->tensor_factor.defined()
             ? premul->tensor_factor
             : at::scalar_tensor(premul->double_factor, at::TensorOptions(at::kDouble));
}

}  // namespace

ElementType element_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return {comm::DType::float32, 1};
    case at::kDouble: return {comm::DType::float64, 1};
    case at::kHalf: return {comm::DType::float16, 1};
    case at::kBFloat16: return {comm::DType::bfloat16, 1};
    case at::kChar: return {comm::DType::int8, 1};
    case at::kShort: return {comm::DType::int16, 1};
    case at::kInt: return {comm::DType::int32, 1};
    case at::kLong: return {comm::DType::int64, 1};
    case at::kByte: return {comm::DType::uint8, 1};
    case at::kComplexFloat: return {comm::DType::float32, 2};
    case at::kComplexDouble: return {comm::DType::float64, 2};
    case at::kComplexHalf: return {comm::DType::float16, 2};
    default: return {comm::DType::uint8, c10::elementSize(type)};
  }
}

void Reduction::prepare(at::Tensor host) const {
  if (!factor.defined()) return;
  at::NoGradGuard no_grad;
  host.mul_(factor.to(host.device(), host.scalar_type()));
}

Reduction reduction_for(const Op& op, at::ScalarType type) {
  const Op::RedOpType kind = op;
  if (type == at::kBool) return {for_bool(kind), {}};
  const bool as_bytes = type != at::kByte && element_type(type).dtype == comm::DType::uint8;
  if (as_bytes) refuse(kind, type);
  return {for_number(kind, type), kind == Op::PREMUL_SUM ? factor_of(op) : at::Tensor()};
}

}  // namespace bimetal::c10d
