#pragma once
// Data parallelism with unequal batches. Gradients are summed over the ranks in buckets while
// backward still runs (Li et al., "PyTorch Distributed", VLDB 2020, §3.2). Each rank's sum of
// losses is divided by the weight W of the whole batch. So the result is the gradient of the mean
// over all its samples, or tokens: docs/balance.md.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/parameter_store.h"
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
/// A rank without samples calls begin_step and finish_step alone. A parameter that no rank used
/// keeps an undefined gradient, as on one device; one that some ranks used gets their sum
/// everywhere.
///
/// On the CPU a gradient shares memory with its bucket: the next step overwrites it, so clone what
/// is to be kept.
class ReplicatedModel final : public ParameterStore {
 public:
  /// Verifies that all ranks hold the same parameters and buffers (count, names, shapes, types;
  /// Error(CallMismatch) names the first difference and the ranks), then copies rank 0's values to
  /// all. Collective. `model` must not gain or lose parameters afterwards, nor move to another
  /// device or type. Error(Unsupported) for trained parameters that are complex, or spread over
  /// several devices of one rank.
  ReplicatedModel(const task::ModelState& model, comm::Group group,
                  ReplicatedModelOptions options = {});
  ~ReplicatedModel() override;
  ReplicatedModel(const ReplicatedModel&) = delete;
  ReplicatedModel& operator=(const ReplicatedModel&) = delete;

  void begin_step(std::int64_t weight, double scale = 1) override;
  /// Without any communication.
  void backward(const torch::Tensor& loss, std::int64_t part = 1) override;
  /// Each bucket is sent as soon as it is full.
  void backward_last(const torch::Tensor& loss, std::int64_t part = 1) override;
  void run_pass(const std::function<void()>& backward, bool last) override;
  double loss_factor() const override;
  /// Waits for every bucket and writes the summed gradients into the parameters.
  void finish_step() override;

  bool trains(const torch::Tensor& parameter) const override;
  std::vector<comm::NamedValues> error_feedback() override;
  bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) override;
  void broadcast_buffers(int root) override;
  double wait_seconds() const noexcept override;
  double communicate_seconds() const noexcept override;
  const comm::Group& group() const noexcept override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::parallel
