#pragma once
// Backward in two parts: gradients of inputs, for which the stage before waits, and gradients of
// weights, for which nobody waits (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, §2).

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// The backward of one forward pass, in two parts. The first part goes back through the graph to
/// the inputs alone, and keeps the gradients that arrive at the operations which use a parameter.
/// The second begins at these, each with its own parameters, so that nothing is computed twice.
/// Parameters that more than one operation on the way to the inputs uses get theirs by an ordinary
/// pass of their own, which is exact, too, and does the way a second time.
///
/// Use from one thread. Keeps the graph until it goes.
class SplitBackward {
 public:
  /// `outputs` that require gradients, and what arrives at them, one for each; `inputs`: leaves
  /// that do. All other leaves of the graph are parameters.
  SplitBackward(task::Values outputs, task::Values gradients, task::Values inputs);
  ~SplitBackward();
  SplitBackward(const SplitBackward&) = delete;
  SplitBackward& operator=(const SplitBackward&) = delete;

  /// Adds to the inputs' grad(). Once, and before of_weights().
  void of_inputs();
  /// Adds to the parameters' grad(), whose hooks fire.
  void of_weights();

  /// For this number of parameters the second part is an ordinary pass.
  std::size_t computed_twice() const noexcept { return others_.size(); }

 private:
  using Node = torch::autograd::Node;
  using NodePointer = decltype(torch::autograd::Edge::function);
  /// An operation where the ways to inputs and to parameters part.
  struct Fork {
    NodePointer node;
    torch::autograd::edge_list parameters = {};
    torch::autograd::variable_list gradients = {};  ///< what arrived at it
    std::uintptr_t hook = 0;
  };

  void find_forks();
  void take_hooks_off();

  torch::autograd::edge_list roots_, inputs_;
  task::Values gradients_;
  std::vector<std::unique_ptr<Fork>> forks_;  ///< where hooks find them
  torch::autograd::edge_list others_;
};

}  // namespace bimetal::parallel::pipeline
