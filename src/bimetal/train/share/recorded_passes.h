#pragma once
// train.graphs: forward and backward of pieces of a share, launched as graphs of the device
// (device/graph.h) instead of kernel by kernel.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bimetal/device/graph.h"
#include "bimetal/task/task.h"

namespace bimetal::train {

/// Passes of one model on one device, by the shapes of a piece's tensors. Pieces of a shape are
/// computed as usual the first time, in which libraries choose their kernels, and recorded the
/// second time; so a shape that comes once, as while shares still change, costs nothing more. The
/// kMost shapes that were used last are kept. The batch, the gradient of the loss and the gradients
/// of parameters lie in memory that stays, so that neither the loss scale, nor a step's weight, nor
/// the learning rate is in what was recorded. Use from one thread.
class RecordedPasses {
 public:
  static constexpr std::size_t kMost = 4;

  using LossOf = std::function<torch::Tensor(const task::Values& piece)>;

  /// Error(Unsupported) for a device without graphs.
  RecordedPasses(const task::Model& model, const torch::Device& device);
  ~RecordedPasses();

  /// loss_of(piece). Its backward adds to the parameters' gradients as that of loss_of(piece)
  /// would, before anything that waits for single gradients (hooks of accumulators) is told; it is
  /// to be run before the next call of this, once at most. Errors: those of `loss_of` and backward;
  /// Unsupported where `loss_of` draws (task/dropout.h), whose numbers would be the same in every
  /// pass, and for what no graph can have.
  torch::Tensor loss(const task::Values& piece, const LossOf& loss_of);

  /// How many shapes are recorded.
  std::size_t kept() const noexcept { return passes_.size(); }

 private:
  struct Home;
  struct Pass;
  class Replay;

  std::shared_ptr<Pass> find(const task::Values& piece);
  bool seen(const task::Values& piece);
  std::shared_ptr<Pass> record(const task::Values& piece, const LossOf& loss_of);

  std::shared_ptr<Home> home_;
  device::GraphRecorder recorder_;
  std::vector<std::shared_ptr<Pass>> passes_;    ///< the one that was used last first
  std::vector<std::vector<std::int64_t>> seen_;  ///< shapes, likewise
};

}  // namespace bimetal::train
