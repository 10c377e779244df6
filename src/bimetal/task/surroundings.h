#pragma once
// What a forward pass reads beside its inputs, parameters and buffers, so that a second pass can be
// the same as the first.

#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <memory>
#include <vector>

#include "bimetal/task/dropout.h"

namespace bimetal::task {

/// This thread's autocast and DrawScope, and torch's default generators of the CPU and of one
/// device, at the time of its making. Those generators are the process's: two threads that draw
/// from them at once get each other's numbers, here as everywhere.
class Surroundings {
 public:
  explicit Surroundings(const torch::Device& device);

  /// Does `work` with all of it as it was then, and puts back what it finds now, also when `work`
  /// throws. Autocast keeps no casts from before, nor for later: theirs may be without a gradient.
  void restore_for(const std::function<void()>& work) const;

 private:
  struct Autocast {
    torch::DeviceType device;
    bool enabled = false;
    torch::Dtype dtype;
  };
  struct Generator {
    torch::Device device;
    torch::Tensor state;
  };

  void put_back() const;

  torch::Device device_;
  std::vector<Autocast> autocast_;
  bool autocast_keeps_casts_;
  std::vector<Generator> generators_;
  std::shared_ptr<const Draws> draws_ = current_draws();
};

}  // namespace bimetal::task
