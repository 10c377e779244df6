#pragma once
// An optimizer of torch.optim, with its scheduler, as one that the program's step knows.

#include <cstdint>
#include <vector>

#include "bimetal/optim/foreign.h"
#include "bimetal/python_host/calls.h"

namespace bimetal::python_host {

/// Use from one thread, one without the interpreter's lock.
class HostedOptimizer final : public optim::ForeignOptimizer {
 public:
  /// `hosted`: bimetal.task.hosted.HostedOptimizer over `parameters`. With the interpreter's
  /// lock.
  HostedOptimizer(const pybind11::object& hosted, std::vector<torch::Tensor> parameters);

  /// One step of the optimizer and of its scheduler; state() then holds what both keep.
  torch::Tensor step(LossClosure closure = nullptr) override;

 private:
  void take_restored();
  void show_state();

  Held hosted_;
  std::vector<torch::Tensor> parameters_;
  /// What this object has put into state(), for the first parameter: another one there means that
  /// a checkpoint's has been put in its place.
  const torch::optim::OptimizerParamState* shown_ = nullptr;
};

}  // namespace bimetal::python_host
