#pragma once
// libtorch's Adam and AdamW by the merged update of adam_kernel.h, for parameters on the CPU and
// for the states of others that are kept here, in memory or on a disk. Their results, options and
// state are libtorch's own, so that checkpoints are the same.

#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>
#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bimetal/optim/adam_kernel.h"
#include "bimetal/optim/fused.h"
#include "bimetal/optim/offload/disk_moments.h"

namespace bimetal::optim {

// Adam's merged update (adam_kernel.h) of tensors, by all threads of at::parallel_for.

/// Tensors of as many elements each, contiguous and on the CPU. All have one type, float32 or
/// float64, except `bfloat16`, which may be undefined: then there is no copy.
struct AdamTensors {
  torch::Tensor parameter, gradient, mean, square;  ///< the two moments
  torch::Tensor bfloat16 = {};                      ///< where the parameter is copied to
};

/// Steps them, without autograd. Error(InvalidArgument) for other tensors. Safe from any thread for
/// tensors of its own.
void adam_update(const AdamTensors& tensors, const AdamNumbers& numbers);

/// Parameters are float32 or float64 and contiguous, on any device; those of another than the CPU
/// and their gradients come here and go back piece by piece. States are made here; those that a
/// checkpoint brings are moved here with the next step. Without amsgrad. Use from one thread.
template <typename Base, typename State, typename Options>
class CpuAdamOf final : public Base, public MergedUpdate, public KeepsOnDisk {
 public:
  using Base::Base;
  using typename Base::LossClosure;

  /// From now on moments live in a file in `folder`, and states are tensors over it. Errors:
  /// StateFile's.
  void keep_on_disk(const std::filesystem::path& folder);

  std::optional<DiskTraffic> disk_traffic() const override {
    return disk_ ? std::optional(disk_->traffic()) : std::nullopt;
  }

  void set_gradient_factor(double factor) override { gradient_factor_ = factor; }

  void set_after_parameter(std::function<void(const torch::Tensor& parameter)> then) override {
    after_parameter_ = std::move(then);
  }

  void set_bfloat16(std::function<torch::Tensor(const torch::Tensor& parameter)> of) override {
    bfloat16_of_ = std::move(of);
  }

  /// Error(InvalidArgument) for parameters or options that are none of the above, with nothing
  /// changed; StateFile's.
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  struct Stepped {
    torch::Tensor parameter, gradient, bfloat16;
    State* state;
    AdamNumbers numbers;
  };

  std::vector<torch::Tensor> parameters() const;
  AdamNumbers numbers_of(const Options& options) const;
  State& state_of(const torch::Tensor& parameter, std::size_t index);
  void step_in_memory(const Stepped& stepped) const;
  void step_on_disk(const std::vector<std::size_t>& indices, const std::vector<Stepped>& stepped);

  std::unique_ptr<DiskMoments> disk_;
  double gradient_factor_ = 1;
  std::function<void(const torch::Tensor&)> after_parameter_ = [](const torch::Tensor&) {};
  std::function<torch::Tensor(const torch::Tensor&)> bfloat16_of_ = [](const torch::Tensor&) {
    return torch::Tensor();
  };
};

/// Adam.
using CpuAdam =
    CpuAdamOf<torch::optim::Adam, torch::optim::AdamParamState, torch::optim::AdamOptions>;
/// AdamW.
using CpuAdamW =
    CpuAdamOf<torch::optim::AdamW, torch::optim::AdamWParamState, torch::optim::AdamWOptions>;

}  // namespace bimetal::optim
