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

std::vector<double> read_together(const std::vector<torch::Tensor>& tensors) {
  if (tensors.empty()) return {};
  const torch::NoGradGuard no_grad;
  const auto& device = tensors.front().device();
  const bool alike = std::ranges::all_of(
      tensors, [&](const torch::Tensor& tensor) { return tensor.device() == device; });
  const auto wide = device.is_mps() ? torch::kFloat32 : torch::kFloat64;
  std::vector<torch::Tensor> flat;
  for (const auto& tensor : tensors) {
    const auto here = alike ? tensor : tensor.to(torch::kCPU);
    flat.push_back(here.flatten().to(alike ? wide : torch::kFloat64));
  }
  const auto all = (flat.size() == 1 ? flat.front() : at::cat(flat))
                       .to(torch::kCPU)
                       .to(torch::kFloat64)
                       .contiguous();
  const auto* const numbers = all.const_data_ptr<double>();
  return {numbers, numbers + all.numel()};
}

}  // namespace bimetal::device
