#include "bimetal/c10d/host_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/device/staging.h"

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

namespace {

void check_layout(const at::Tensor& tensor) {
  if (tensor.layout() == at::kStrided && !tensor.is_quantized()) return;
  throw Error(ErrorCode::Unsupported,
              fmt::format("tensors of layout {} cannot be exchanged; make them dense first",
                          c10::str(tensor.layout())));
}

bool can_be_lent(const at::Tensor& tensor) {
  return tensor.device().is_cpu() && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

/// For values of that tensor's type.
at::Tensor host_space(at::IntArrayRef sizes, const at::Tensor& of) {
  if (of.device().is_cpu()) {
    return at::empty(sizes, of.options().memory_format(at::MemoryFormat::Contiguous));
  }
  const auto count = c10::multiply_integers(sizes);
  return device::unset_host_buffer(count, of.scalar_type(), of.device()).view(sizes);
}

/// Whatever still reads or writes their memory comes before the operation: on any stream, since
/// hooks of torch's (powerSGD_hook) begin some in callbacks' streams, which wait for no other.
void wait_for_all_of(at::ArrayRef<at::Tensor> tensors) {
  const at::Tensor* before = nullptr;
  for (const auto& tensor : tensors) {
    if (!before || before->device() != tensor.device()) device::synchronize(tensor.device());
    before = &tensor;
  }
}

std::int64_t total_of(const std::vector<at::Tensor>& parts) {
  std::int64_t total = 0;
  for (const auto& part : parts) {
    check_layout(part);
    if (part.scalar_type() != parts.front().scalar_type()) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("the tensors of one operation are of different types: {} and {}",
                              c10::toString(parts.front().scalar_type()),
                              c10::toString(part.scalar_type())));
    }
    total += part.numel();
  }
  return total;
}

}  // namespace

at::Tensor HostTensors::lend(const at::Tensor& tensor, Use use) {
  check_layout(tensor);
  if (use != Use::write) inputs_.push_back(tensor);
  if (use != Use::scratch && can_be_lent(tensor)) {
    held_.push_back(tensor);
    return tensor;
  }
  at::NoGradGuard no_grad;
  at::Tensor host = host_space(tensor.sizes(), tensor);
  wait_for_all_of(tensor);
  if (use != Use::write) host.copy_(tensor);
  held_.push_back(host);
  if (use == Use::write || use == Use::update) results_.emplace_back(host, tensor);
  return host;
}

at::Tensor HostTensors::join(const std::vector<at::Tensor>& parts) {
  const std::int64_t total = total_of(parts);
  at::NoGradGuard no_grad;
  const at::Tensor flat = host_space({total}, parts.front());
  std::int64_t at = 0;
  inputs_.insert(inputs_.end(), parts.begin(), parts.end());
  wait_for_all_of(parts);
  for (const auto& part : parts) {
    flat.narrow(0, at, part.numel()).view(part.sizes()).copy_(part);
    at += part.numel();
  }
  held_.push_back(flat);
  return flat;
}

at::Tensor HostTensors::divide(const std::vector<at::Tensor>& parts) {
  const std::int64_t total = total_of(parts);
  at::NoGradGuard no_grad;
  const at::Tensor flat = host_space({total}, parts.front());
  std::int64_t at = 0;
  for (const auto& part : parts) {
    results_.emplace_back(flat.narrow(0, at, part.numel()).view(part.sizes()), part);
    at += part.numel();
  }
  wait_for_all_of(parts);
  held_.push_back(flat);
  return flat;
}

void HostTensors::hand_back() {
  at::NoGradGuard no_grad;
  for (auto& [from, to] : results_) {
    if (to.device().is_cpu()) {
      to.copy_(from);
      continue;
    }
    // Not behind what the current stream has still to do, as the rest of a backward. Whoever waits
    // for the operation may use any stream: the copy has ended when this has.
    const c10::StreamGuard beside(device::stream_of_its_own(to.device()));
    to.copy_(from);
    if (!to.is_contiguous()) device::synchronize(to.device());  // its last part is a kernel
  }
}

comm::Buffer buffer_of(const at::Tensor& host) {
  const auto element = element_type(host.scalar_type());
  return {host.data_ptr(), static_cast<std::size_t>(host.numel()) * element.per_value,
          element.dtype};
}

}  // namespace bimetal::c10d
