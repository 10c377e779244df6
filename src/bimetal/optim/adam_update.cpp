#include "bimetal/optim/adam_update.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>

#include "bimetal/base/error.h"

namespace bimetal::optim {
namespace {

/// Elements below which another thread costs more than it saves.
constexpr std::int64_t kGrain = 1 << 15;

bool fits(const torch::Tensor& tensor, torch::ScalarType type, std::int64_t count) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == torch::kStrided &&
         tensor.is_contiguous() && tensor.scalar_type() == type && tensor.numel() == count;
}

void require_fit(const AdamTensors& tensors) {
  const auto& [parameter, gradient, mean, square, copy] = tensors;
  const auto type = parameter.scalar_type();
  const bool known = type == torch::kFloat32 || type == torch::kFloat64;
  const bool alike = std::ranges::all_of(
      std::array{&parameter, &gradient, &mean, &square},
      [&](const torch::Tensor* tensor) { return fits(*tensor, type, parameter.numel()); });
  const bool copied = !copy.defined() || fits(copy, torch::kBFloat16, parameter.numel());
  if (known && alike && copied) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("Adam's merged update is of contiguous float32 or float64 on the CPU, as "
                          "many elements of each; got a parameter of {} elements of {}",
                          parameter.numel(), c10::toString(type)));
}

template <typename Real>
void update(const AdamTensors& tensors, const AdamNumbers& numbers) {
  auto* const parameters = tensors.parameter.data_ptr<Real>();
  const auto* const gradients = tensors.gradient.data_ptr<Real>();
  auto* const means = tensors.mean.data_ptr<Real>();
  auto* const squares = tensors.square.data_ptr<Real>();
  auto* const copies = tensors.bfloat16.defined()
                           ? static_cast<std::uint16_t*>(tensors.bfloat16.data_ptr())
                           : nullptr;
  at::parallel_for(0, tensors.parameter.numel(), kGrain, [&](std::int64_t from, std::int64_t to) {
    adam_pass({.parameters = parameters + from,
               .gradients = gradients + from,
               .means = means + from,
               .squares = squares + from,
               .bfloat16s = copies == nullptr ? nullptr : copies + from,
               .count = static_cast<std::size_t>(to - from)},
              numbers);
  });
}

}  // namespace

void adam_update(const AdamTensors& tensors, const AdamNumbers& numbers) {
  require_fit(tensors);
  if (tensors.parameter.scalar_type() == torch::kFloat32) return update<float>(tensors, numbers);
  update<double>(tensors, numbers);
}

}  // namespace bimetal::optim
