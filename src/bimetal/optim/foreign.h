#pragma once
// An optimizer that is somebody else's: what it keeps is tensors by names of its own, which
// checkpoints carry as they are.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace bimetal::optim {

/// Its learning rate is its own affair.
struct ForeignOptions : torch::optim::OptimizerCloneableOptions<ForeignOptions> {
  double get_lr() const override { return 0; }
  void set_lr(double /*rate*/) override {}
};

struct ForeignState : torch::optim::OptimizerCloneableParamState<ForeignState> {
  std::map<std::string, torch::Tensor> tensors;  ///< names without dots
};

/// Use from one thread.
class ForeignOptimizer : public torch::optim::Optimizer {
 public:
  /// `kind`: what it is called in checkpoints, whose state no other takes.
  ForeignOptimizer(std::vector<torch::Tensor> parameters, std::string kind)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<ForeignOptions>()),
        kind_(std::move(kind)) {}

  const std::string& kind() const noexcept { return kind_; }

 private:
  std::string kind_;
};

}  // namespace bimetal::optim
