#pragma once
// Data parallelism with unequal batches. Gradients are summed over the ranks in buckets while
// backward still runs (Li et al., "PyTorch Distributed", VLDB 2020, §3.2). Each rank's sum of
// losses is divided by the weight W of the whole batch. So the result is the gradient of the mean
// over all its samples, or tokens: docs/balance.md.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "bimetal/c10d/island.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/parallel/data/replicated_options.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel {

/// A model that every rank has. Owns its gradient hooks on one rank. Use from one thread.
///
/// A rank without samples calls begin_step and finish_step alone. A parameter that no rank used
/// keeps an undefined gradient, as on one device; one that some ranks used gets their sum
/// everywhere. Each bucket is sent as soon as the step's last pass has filled it; passes before it
/// communicate nothing.
///
/// On the CPU a gradient shares memory with its bucket: the next step overwrites it, so clone
/// gradients that you want to keep.
class ReplicatedModel final : public ParameterStore {
 public:
  /// Copies rank 0's values to all, unless they are equal. Collective. `model` must not gain or
  /// lose parameters afterwards, nor move to another device or type. Errors: ParameterStore's;
  /// Unsupported for trained parameters that are complex, or spread over several devices of one
  /// rank; InvalidArgument for an island together with compression.
  ReplicatedModel(const task::ModelState& model, comm::Group group,
                  const ReplicatedModelOptions& options = {});
  ~ReplicatedModel() override;

  TensorFacts facts_of(const torch::Tensor& tensor) const override;
  std::vector<comm::NamedValues> error_feedback() override;
  bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) override;

 private:
  void begin() override;
  void pass(const std::function<void()>& backward, bool last) override;
  void finish(const std::function<void()>& before_sums,
              const std::function<void()>& when_sent) override;
  const ExchangeSpan& times() const noexcept override;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal::parallel
