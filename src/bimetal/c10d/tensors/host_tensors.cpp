#include "bimetal/c10d/tensors/host_tensors.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/c10d/tensors/element_type.h"
#include "bimetal/device/device.h"
#include "bimetal/device/staging.h"

namespace bimetal::c10d {
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
