#pragma once
// A device's work on its share of a batch: forward and backward, in pieces, and again in smaller
// ones if they do not fit into its memory. This is the only place for it, whatever happens to the
// gradients.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/segments.h"
#include "bimetal/task/task.h"
#include "bimetal/train/replicas.h"
#include "bimetal/train/share/recorded_passes.h"

namespace bimetal::train {

// Finds losses whose autograd graph outlives their step: a task that adds them up, or keeps them in
// a list, makes memory grow from step to step, which nothing else tells.

/// Knows whether a graph's node is still there. torch 2.11 counts nodes by shared_ptr.
template <class Node>
std::weak_ptr<Node> weakly(const std::shared_ptr<Node>& node) {
  return node;
}
template <class Node>
c10::weak_intrusive_ptr<Node> weakly(const c10::intrusive_ptr<Node>& node) {
  return c10::weak_intrusive_ptr<Node>(node);
}

/// Use from one thread.
class GraphWatch {
 public:
  /// A step's loss, before its backward. Logs one warning in its life, when three graphs in a row
  /// were still there two steps later. (The last one may be kept: it is replaced.)
  void saw(const torch::Tensor& loss);

 private:
  using Node = decltype(torch::autograd::Edge::function);
  using Graph = decltype(weakly(std::declval<Node>()));

  static constexpr int kInARow = 3;

  std::array<Graph, 2> last_ = {weakly(Node()), weakly(Node())};  ///< the older one first
  int kept_ = 0;
  bool warned_ = false;
};

// train.recompute: which activations are dropped after forward and computed again for backward.

/// Units that are computed again together, as task::Segments takes it, in a model of `units`; 0:
/// none are. `configured`, as in the job file: "none"; "all": each unit by itself; "sqrt": √units
/// together, after Chen et al. 2016, §4.1; a number: so many together; "auto": none, until there is
/// no memory for that. Error(InvalidArgument) for anything else.
std::size_t recomputed_at_once(const std::string& configured, std::size_t units);

/// Most samples that a rank computes at once.
class MicroBatch {
 public:
  /// `configured`: train.micro_batch; 0 takes a number that suits the device (on a CPU kCpuDefault
  /// samples, or as many as weigh kCpuWeight; the whole share on an accelerator, whose kernels want
  /// large batches). `sample_weight`: a sample's weight, at least 1. `group`: so many samples that
  /// follow each other stay together.
  MicroBatch(std::int64_t configured, const torch::Device& device, std::int64_t sample_weight = 1,
             std::int64_t group = 1);

  /// The piece that a CPU computes fastest; bench figures in docs/balance.md.
  static constexpr std::int64_t kCpuDefault = 64;
  /// Tokens that keep a CPU as busy as more would, and whose logits are still small.
  static constexpr std::int64_t kCpuWeight = 1024;
  /// Smaller pieces are of no use: the per-call cost outweighs the samples. For heavier samples
  /// this is a weight.
  static constexpr std::int64_t kSmallest = 8;

  std::int64_t limit() const noexcept { return limit_; }

  /// After an allocation failed for a share of `batch`: halves the pieces. False if they are as
  /// small as they get.
  bool halve(std::int64_t batch);

  /// Number of pieces for a share, `least` or as many as it has groups: they differ by one sample,
  /// or group, at most.
  std::int64_t pieces(std::int64_t batch, std::int64_t least = 0) const;

  /// Calls `compute(piece, last)` for each piece in order.
  void for_each(const task::Values& batch, std::int64_t least,
                const std::function<void(const task::Values& piece, bool last)>& compute) const;

 private:
  std::int64_t whole_groups(std::int64_t samples) const;

  std::int64_t group_;
  std::int64_t smallest_;
  std::int64_t limit_;
};

/// The least of the ranks' limits, where all have to cut alike. Collective.
std::int64_t least_limit(comm::Group group, const MicroBatch& own, Deadline deadline);

/// Backward of the sum of the losses of some of a share's samples, divided by the weight of all of
/// the step's; `last`: no more of the share follow, so that gradients may leave while it runs.
using Backward = std::function<void(const torch::Tensor& loss_sum, bool last)>;

/// The backward of something that has a backward for the last piece and one for those before, and
/// knows the step's weight.
template <typename Gradients>
Backward backward_into(Gradients& gradients) {
  return [&gradients](const torch::Tensor& loss_sum, bool last) {
    if (last) {
      gradients.backward_last(loss_sum);
    } else {
      gradients.backward(loss_sum);
    }
  };
}

/// A share's pieces, forward of which is somebody else's.
class Pieces {
 public:
  explicit Pieces(Backward backward) : backward_(std::move(backward)) {}
  /// Error(InvalidArgument) for a loss that is not one number.
  void add(const torch::Tensor& loss_sum, bool last);
  /// The sum of all samples' losses. Waits for the device, which adding a piece does not.
  double loss_sum() const;
  /// The losses of the pieces, one after the other, on their device.
  torch::Tensor losses() const;

 private:
  Backward backward_;
  std::vector<torch::Tensor> sums_;
};

struct ComputeOptions {
  std::int64_t micro_batch = 0;                                    ///< as train.micro_batch
  task::BeforeUse before_use = {};                                 ///< as run_units() has it
  precision::Precision precision = precision::Precision::float32;  ///< of forward and backward
  bool channels_last = false;                                      ///< of images that it gets
  std::string recompute = "none";                                  ///< as train.recompute
  bool repeats = true;  ///< a share that does not fit is an outcome; else an error
  bool waits = true;    ///< for the device's results; else try_run() leaves that to others
  bool graphs = false;  ///< pieces are launched as graphs (recorded_passes.h), where the device can
};

/// Use from one thread.
class Compute {
 public:
  /// `task` must outlive it. Error(InvalidArgument) for a `recompute` that is not known.
  Compute(const task::Task& task, task::Model model, const torch::Device& device,
          ComputeOptions options = {});

  /// The sum of the losses of a share's samples, after forward and backward; waits for the device.
  /// `share` is on it; `draws`: those of its samples, left out if the result counts for nothing.
  /// Errors: those of Pieces::add, and exceptions of the model, the task and `backward`. In `least`
  /// pieces, or as many as it has groups, or more.
  double run(const task::Values& share, const Backward& backward, const task::Draws& draws = {},
             std::int64_t least = 0);

  /// The number of pieces in which a share of so many samples is computed at present.
  std::int64_t pieces(std::int64_t samples, std::int64_t least = 0) const {
    return micro_batch_.pieces(samples, least);
  }

  struct Outcome {
    progress::Fit fit = progress::Fit::fits;
    double loss_sum = 0;  ///< 0 unless it fits
    /// Without ComputeOptions::waits, and with samples: the losses of the pieces. loss_sum will be
    /// their sum.
    torch::Tensor losses = {};
    std::exception_ptr error = {};  ///< the lack of memory, if there was one
  };

  /// The same for a share of so many samples that `fetch` gives. If it does not fit into memory,
  /// what libtorch keeps of that is given back, and the next try does without graphs
  /// (Fit::try_without_graphs) if there are any, or recomputes activations (Fit::try_recomputing)
  /// if that is left to it ("auto") and of any use, or else takes smaller pieces
  /// (Fit::try_smaller_pieces), unless the share itself cannot be held or its pieces are as small
  /// as they get (Fit::too_large). Errors: as of run() and fetch(), but for memory where steps are
  /// repeated; elsewhere a bimetal::Error of it that names no rank becomes a std::bad_alloc, since
  /// it is of this rank alone.
  Outcome try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                  const Backward& backward, const task::Draws& draws = {}, std::int64_t least = 0);

 private:
  Pieces compute(const task::Values& share, const Backward& backward, const task::Draws& draws,
                 std::int64_t least);
  torch::Tensor loss_of(const task::Values& piece) const;
  bool drop_graphs();
  bool begin_recomputing();
  progress::Fit next_try(std::int64_t samples, std::int64_t least);

  const task::Task& task_;
  const task::Model model_;
  const torch::Device device_;
  MicroBatch micro_batch_;
  const ComputeOptions options_;
  const precision::Products products_;
  task::Segments segments_;
  GraphWatch graphs_;
  std::optional<RecordedPasses> recorded_;
};

/// Computes a rank's share of a step, whatever part of the model the rank has: a replica
/// (step.cpp), or a stage (pipeline/stage_compute.h). Use from one thread.
class ShareCompute {
 public:
  explicit ShareCompute(const Lanes& lanes) : lanes_(lanes) {}
  virtual ~ShareCompute() = default;

  /// Which rank computes which samples.
  const Lanes& lanes() const noexcept { return lanes_; }

  /// Before a step in which this lane has so many samples. Collective.
  virtual void prepare(std::int64_t /*samples*/) {}
  /// As Compute::try_run, in the passes of a step.
  virtual Compute::Outcome try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                                   const task::Draws& draws) = 0;
  /// Learns from the ranks' figures of the step. Collective.
  virtual void learn(std::span<const progress::RankFigures> /*figures*/) {}

 private:
  Lanes lanes_;
};

}  // namespace bimetal::train
