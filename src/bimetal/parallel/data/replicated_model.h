#pragma once
// Data parallelism with unequal batches. Gradients are summed over the ranks in buckets while
// backward still runs (Li et al., "PyTorch Distributed", VLDB 2020, §3.2), each rank's sum of
// losses divided by the weight W of the whole batch, so that what comes out is the gradient of the
// mean over all samples, or tokens, of it: docs/balance.md.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/task/model_state.h"

namespace bimetal::parallel {

struct ReplicatedModelOptions {
  std::size_t bucket_bytes = 25u << 20;
  std::size_t first_bucket_bytes = 1u << 20;  ///< small, so that communication starts early
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  /// Of the gradients on the wire: docs/compression.md. The same on every rank. Steps are counted
  /// from the first one of this object, where the error feedback is empty, too.
  comm::CompressedAllReduceOptions compression = {};
  /// Sums the gradients where ranks share a vendor library (docs/islands.md); made of the same
  /// group by c10d::form_islands. Not together with compression.
  std::shared_ptr<c10d::Island> island = nullptr;
};

/// A model that every rank has. Owns its gradient hooks on one rank. Use from one thread.
///
///   parallel.begin_step(weight);         // W of this step's samples, the same on every rank
///   parallel.backward(loss, part);       // the loss counts part/W: 1 of a sum over samples, b of
///   …                                    //   a mean over b of them; once per micro-batch
///   parallel.backward_last(loss, part);  // the last one reduces while it runs
///   parallel.finish_step();              // gradients are now those of the mean over W
///
/// A rank without samples calls begin_step and finish_step alone. A parameter that no rank used
/// keeps an undefined gradient, as on one device; one that some ranks used gets their sum
/// everywhere.
///
/// On the CPU a gradient shares memory with its bucket: the next step overwrites it, so clone what
/// is to be kept. Calls in another order throw Error(InvalidArgument) and change nothing.
class ReplicatedModel {
 public:
  /// Verifies that all ranks hold the same parameters and buffers (count, names, shapes, types;
  /// Error(CallMismatch) names the first difference and the ranks), then copies rank 0's values to
  /// all. Collective. `model` must not gain or lose parameters afterwards, nor move to another
  /// device or type. Error(Unsupported) for trained parameters that are complex, or spread over
  /// several devices of one rank.
  ReplicatedModel(const task::ModelState& model, comm::Group group,
                  ReplicatedModelOptions options = {});
  ~ReplicatedModel();
  ReplicatedModel(const ReplicatedModel&) = delete;
  ReplicatedModel& operator=(const ReplicatedModel&) = delete;

  /// Clears the gradients. They become `scale` times what they are said to be: for float16, whose
  /// small numbers are none; the same on every rank. Error(InvalidArgument) unless weight > 0.
  void begin_step(std::int64_t weight, double scale = 1);

  /// `loss`: one number, of this rank's samples. Adds the gradient of loss · part / W to the
  /// gradients without any communication. Error(InvalidArgument) unless 0 < part, and if the parts
  /// of this step come to more than W.
  void backward(const torch::Tensor& loss, std::int64_t part = 1);

  /// The same for the step's last micro-batch: each bucket is sent as soon as it is full.
  void backward_last(const torch::Tensor& loss, std::int64_t part = 1);

  /// Waits for every bucket and writes the summed gradients into the parameters. Rethrows the
  /// fabric's errors. After an exception in forward or backward of this rank alone, calling it
  /// still takes part in every exchange (with what this rank has), so that no other rank hangs;
  /// the caller then discards the step on all ranks (see train::Trainer on out-of-memory).
  void finish_step();

  /// What compression has not got across yet, of all ranks together and the same on each: for
  /// checkpoints. Empty where nothing is compressed. Collective, between steps.
  std::vector<comm::NamedValues> error_feedback();
  /// Goes on with it after `steps` steps, on any number of ranks. False, and it is dropped, if it
  /// is of other buckets. Called with the same on every rank, between steps.
  bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps);

  /// Copies rank `root`'s buffers (running means and the like) to all. Collective; nothing is sent
  /// when the model has none.
  void broadcast_buffers(int root = 0);

  /// Seconds finish_step has waited in this step, for other ranks and the network.
  double wait_seconds() const noexcept;
  /// Seconds of this step between the first bucket's start and the last one's end.
  double communicate_seconds() const noexcept;

  const comm::Group& group() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::parallel
