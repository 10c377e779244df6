#include "bimetal/device/stream_timer.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>

namespace bimetal::device {

std::optional<c10::Event> StreamTimer::mark() const {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

double StreamTimer::seconds() const {
  if (!begin_ || !end_) return 0;
  return begin_->elapsedTime(*end_) / 1e3;
}

namespace {

/// One after the other, where they are.
torch::Tensor flat_of(const std::vector<torch::Tensor>& tensors, torch::Dtype wide) {
  std::vector<torch::Tensor> flat;
  for (const auto& tensor : tensors) flat.push_back(tensor.flatten().to(wide));
  return flat.size() == 1 ? flat.front() : at::cat(flat);
}

std::vector<double> numbers_of(const torch::Tensor& on_host) {
  const auto all = on_host.to(torch::kFloat64).contiguous();
  const auto* const numbers = all.const_data_ptr<double>();
  return {numbers, numbers + all.numel()};
}

}  // namespace

std::vector<double> read_together(const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const torch::NoGradGuard no_grad;
  const auto& device = tensors.front().device();
  const bool alike = std::ranges::all_of(
      tensors, [&](const torch::Tensor& tensor) { return tensor.device() == device; });
  if (alike) {
    const auto wide = device.is_mps() ? torch::kFloat32 : torch::kFloat64;
    return numbers_of(flat_of(tensors, wide).to(torch::kCPU));
  }
  std::vector<torch::Tensor> here;
  for (const auto& tensor : tensors) here.push_back(tensor.to(torch::kCPU));
  return numbers_of(flat_of(here, torch::kFloat64));
}

LateNumbers::LateNumbers(const std::vector<torch::Tensor>& tensors) {
  const torch::NoGradGuard no_grad;
  const auto& device = tensors.front().device();
  there_ = flat_of(tensors, device.is_mps() ? torch::kFloat32 : torch::kFloat64);
  here_ = unset_host_buffer(there_.numel(), there_.scalar_type(), device);
  HostStaging staging(device);
  staging.to_host(there_, here_);
  copied_ = staging.mark_to_host();
}

std::vector<double> LateNumbers::take(Deadline deadline) const {
  copied_.wait(deadline);
  return numbers_of(here_);
}

}  // namespace bimetal::device
