#pragma once
// What a step needs of parameters that live in parts on several tensor ranks, beside what the
// replicas of each part do.

#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <vector>

#include "bimetal/parallel/sync.h"
#include "bimetal/parallel/tensor/tensor_model.h"

namespace bimetal::parallel::tensor {

/// Every rank of all replicas makes the same calls.
class TensorSums final : public ExtraSums {
 public:
  /// `replicas`: where model.model() lives; in shards, model.kept_whole() is whole all the time.
  TensorSums(std::shared_ptr<ParameterStore> replicas, std::shared_ptr<const TensorModel> model);

  void begin_step() override;
  /// Sums over the tensor ranks, too, where each has the gradients of its positions of what is
  /// kept whole.
  void after_replicas() override;
  /// What is kept whole becomes what rank 0 has made of it: devices of different kinds round
  /// differently, and would drift apart.
  void after_update() override;

  /// Of what is kept whole rank 0 alone.
  bool counts(const torch::Tensor& whole) const override;
  progress::RankFigures as_one(const progress::RankFigures& mine) override;
  /// A rank that stopped in a pass leaves the others waiting for its part.
  bool can_repeat() const noexcept override { return false; }

  /// For sums, and for the others in them.
  double unit_seconds() const noexcept override;
  double communicate_seconds() const noexcept override;

 private:
  void sum_gradients(std::vector<torch::Tensor>& parameters);

  std::shared_ptr<ParameterStore> replicas_;
  std::shared_ptr<const TensorModel> model_;
  comm::Group group_;  ///< of the tensor ranks, beside that of their units' sums
  progress::FigureExchange figures_;
  double seconds_before_ = 0;   ///< of the steps before this one
  double summing_seconds_ = 0;  ///< of this one, outside of units
};

}  // namespace bimetal::parallel::tensor
