#pragma once
// A task as one of several tensor ranks computes it.

#include "bimetal/parallel/tensor/group_ranks.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel::tensor {

/// The task itself, but that losses and metrics are of outputs of which each rank may have its part
/// (task::cross_entropy_sum). Of its models whoever makes them cuts what is to be cut.
class TensorTask final : public task::Task {
 public:
  /// `task` must outlive it.
  TensorTask(const task::Task& task, std::shared_ptr<const task::TensorRanks> ranks);

  task::Model make_model() const override { return task_.make_model(); }
  std::shared_ptr<const task::Dataset> training() const override { return task_.training(); }
  std::shared_ptr<const task::Dataset> evaluation() const override { return task_.evaluation(); }
  task::Values inputs(const task::Values& batch) const override { return task_.inputs(batch); }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override;
  std::vector<std::string> facts() const override { return task_.facts(); }

 private:
  const task::Task& task_;
  std::shared_ptr<const task::TensorRanks> ranks_;
};

}  // namespace bimetal::parallel::tensor
