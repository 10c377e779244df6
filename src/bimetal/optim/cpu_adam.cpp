#include "bimetal/optim/cpu_adam.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <unordered_map>

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

namespace {

/// Elements of another device's parameters that are here at once.
constexpr std::int64_t kStaged = 1 << 22;

void require_possible(const torch::Tensor& parameter, bool amsgrad) {
  const auto type = parameter.scalar_type();
  if (!amsgrad && parameter.is_contiguous() && (type == torch::kFloat32 || type == torch::kFloat64))
    return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("Adam on the CPU steps contiguous float32 or float64 parameters without "
                          "amsgrad; got one of {}{}",
                          c10::toString(type), amsgrad ? " with amsgrad" : ""));
}

/// Elements [offset, offset + count) of a parameter, whose moments are here.
template <typename Stepped>
void update_part(const Stepped& one, std::int64_t offset, std::int64_t count,
                 const torch::Tensor& mean, const torch::Tensor& square) {
  const auto of = [&](const torch::Tensor& all) { return all.view(-1).narrow(0, offset, count); };
  const auto part = of(one.parameter);
  const auto here = part.to(torch::kCPU);  // itself, on the CPU
  adam_update({here, of(one.gradient).to(torch::kCPU), mean, square,
               one.bfloat16.defined() ? of(one.bfloat16) : torch::Tensor()},
              one.numbers);
  if (!part.is_cpu()) part.copy_(here);
}

}  // namespace

template <typename Base, typename State, typename Options>
std::vector<torch::Tensor> CpuAdamOf<Base, State, Options>::parameters() const {
  std::vector<torch::Tensor> all;
  for (const auto& group : this->param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

template <typename Base, typename State, typename Options>
void CpuAdamOf<Base, State, Options>::keep_on_disk(const std::filesystem::path& folder) {
  disk_ = std::make_unique<DiskMoments>(parameters(), folder);
}

template <typename Base, typename State, typename Options>
AdamNumbers CpuAdamOf<Base, State, Options>::numbers_of(const Options& options) const {
  const auto [beta1, beta2] = options.betas();
  return {.rate = options.lr(),
          .beta1 = beta1,
          .beta2 = beta2,
          .epsilon = options.eps(),
          .weight_decay = options.weight_decay(),
          .decoupled = std::is_same_v<Base, torch::optim::AdamW>,
          .gradient_factor = gradient_factor_};
}

template <typename Base, typename State, typename Options>
State& CpuAdamOf<Base, State, Options>::state_of(const torch::Tensor& parameter,
                                                 std::size_t index) {
  auto& slot = this->state()[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  auto& state = static_cast<State&>(*slot);
  const bool known = state.exp_avg().defined();
  if (disk_) {
    const auto mean = disk_->mean(index);
    if (known && state.exp_avg().data_ptr() == mean.data_ptr()) return state;
    if (known) disk_->store(index, state.exp_avg(), state.exp_avg_sq());
    state.exp_avg(mean.view(parameter.sizes()));
    state.exp_avg_sq(disk_->square(index).view(parameter.sizes()));
  } else if (known) {
    state.exp_avg(state.exp_avg().to(torch::kCPU).contiguous());
    state.exp_avg_sq(state.exp_avg_sq().to(torch::kCPU).contiguous());
  } else {
    const auto options = parameter.options().device(torch::kCPU).requires_grad(false);
    state.exp_avg(torch::zeros(parameter.sizes(), options));
    state.exp_avg_sq(torch::zeros(parameter.sizes(), options));
  }
  return state;
}

template <typename Base, typename State, typename Options>
torch::Tensor CpuAdamOf<Base, State, Options>::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const torch::NoGradGuard no_grad;
  for (const auto& group : this->param_groups()) {
    const bool amsgrad = static_cast<const Options&>(group.options()).amsgrad();
    for (const auto& parameter : group.params()) require_possible(parameter, amsgrad);
  }
  std::vector<Stepped> stepped;
  std::vector<std::size_t> indices;
  std::size_t index = 0;
  for (const auto& group : this->param_groups()) {
    auto numbers = numbers_of(static_cast<const Options&>(group.options()));
    for (const auto& parameter : group.params()) {
      const auto place = index++;
      if (!parameter.grad().defined()) continue;
      auto& state = state_of(parameter, place);
      state.step(state.step() + 1);
      numbers.step = state.step();
      stepped.push_back(
          {parameter, parameter.grad().contiguous(), bfloat16_of_(parameter), &state, numbers});
      indices.push_back(place);
    }
  }
  if (disk_) {
    step_on_disk(indices, stepped);
  } else {
    for (const auto& one : stepped) {
      step_in_memory(one);
      after_parameter_(one.parameter);
    }
  }
  return loss;
}

template <typename Base, typename State, typename Options>
void CpuAdamOf<Base, State, Options>::step_in_memory(const Stepped& stepped) const {
  const auto total = stepped.parameter.numel();
  const auto mean = stepped.state->exp_avg().view(-1);
  const auto square = stepped.state->exp_avg_sq().view(-1);
  const auto most = stepped.parameter.is_cpu() ? total : std::min(total, kStaged);
  for (std::int64_t offset = 0; offset < total; offset += most) {
    const auto count = std::min(most, total - offset);
    update_part(stepped, offset, count, mean.narrow(0, offset, count),
                square.narrow(0, offset, count));
  }
}

template <typename Base, typename State, typename Options>
void CpuAdamOf<Base, State, Options>::step_on_disk(const std::vector<std::size_t>& indices,
                                                   const std::vector<Stepped>& stepped) {
  std::unordered_map<std::size_t, const Stepped*> by_index;
  for (std::size_t i = 0; i < indices.size(); ++i) by_index[indices[i]] = &stepped[i];
  disk_->update(indices, [&](std::size_t index, std::int64_t offset, std::int64_t count,
                             const torch::Tensor& mean, const torch::Tensor& square) {
    const auto& one = *by_index.at(index);
    update_part(one, offset, count, mean, square);
    if (offset + count == one.parameter.numel()) after_parameter_(one.parameter);
  });
}

template class CpuAdamOf<torch::optim::Adam, torch::optim::AdamParamState,
                         torch::optim::AdamOptions>;
template class CpuAdamOf<torch::optim::AdamW, torch::optim::AdamWParamState,
                         torch::optim::AdamWOptions>;

}  // namespace bimetal::optim
