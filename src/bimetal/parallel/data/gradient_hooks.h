#pragma once
// When gradients are complete: which parameters have some that are exchanged, each one's moment in
// a backward pass, and the buckets that they fill.

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::parallel {

/// Calls `on_ready(i)` once per backward pass after parameter i's gradient has been accumulated
/// into its grad(), on the thread that runs that part of backward (with several devices: several
/// threads at once). Parameters that the pass does not reach are not reported. An exception from
/// `on_ready` leaves backward(). The hooks are gone after the destructor.
class GradientHooks {
 public:
  GradientHooks(const std::vector<torch::Tensor>& parameters,
                std::function<void(std::size_t)> on_ready);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  // libtorch keeps a leaf's accumulator only while a graph refers to it, so it is held here.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(torch::Tensor()));
  struct Hook {
    Accumulator accumulator;
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

/// Those that require gradients, in their order. Error(Unsupported), naming the first, for types
/// that cannot be summed over the ranks, and for several devices.
std::vector<task::NamedTensor> trained_parameters(const std::vector<task::NamedTensor>& parameters);

/// Each gradient is taken as soon as backward has it, once in a pass; what backward leaves out when
/// its bucket is completed. Use from one thread; backward itself may use several, which take one
/// after the other.
class BucketFilling {
 public:
  /// Puts the gradient of a bucket's parameter into its slot, or zeros where there is none.
  using Take = std::function<void(std::size_t bucket, std::size_t slot)>;
  /// Called after each one, with the bucket that may be full now.
  using Taken = std::function<void(std::size_t bucket)>;

  /// `buckets`: for each slot its place in `parameters`. Nothing of the first `late` ones is taken
  /// before complete().
  BucketFilling(std::vector<torch::Tensor> parameters,
                std::vector<std::vector<std::size_t>> buckets, Take take, Taken taken,
                std::size_t late = 0);

  /// A pass begins.
  void expect_anew();
  /// Runs `backward`, and takes the gradients that it gives. Error(Unsupported) out of it for a
  /// gradient that comes in two parts.
  void during(const std::function<void()>& backward);
  /// The same for a backward that somebody else runs: whether one is under way.
  void set_taking(bool on) noexcept { taking_ = on; }
  /// Takes the missing gradients of a bucket.
  void complete(std::size_t bucket);
  bool full(std::size_t bucket) const { return missing_[bucket] == 0; }

 private:
  struct Place {
    std::size_t bucket = std::numeric_limits<std::size_t>::max(), slot = 0;
  };

  void on_gradient(std::size_t parameter);
  void fill(std::size_t bucket, std::size_t slot);

  std::vector<torch::Tensor> parameters_;
  std::vector<std::vector<std::size_t>> buckets_;
  std::vector<Place> places_;  ///< of each parameter; some are in no bucket
  Take take_;
  Taken taken_;
  std::size_t late_;
  bool taking_ = false;  ///< written only while no backward runs
  std::mutex mutex_;     ///< guards the members below, and all calls, against threads of one
                         ///< backward
  std::vector<std::vector<bool>> filled_;
  std::vector<std::size_t> missing_;

  GradientHooks hooks_;  ///< last: its callbacks use all of the above
};

/// For plans whose slots name their parameters.
template <typename Plan>
std::vector<std::vector<std::size_t>> parameters_of(const std::vector<Plan>& plans) {
  std::vector<std::vector<std::size_t>> buckets(plans.size());
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (const auto& slot : plans[i].slots) buckets[i].push_back(slot.parameter);
  }
  return buckets;
}

}  // namespace bimetal::parallel
