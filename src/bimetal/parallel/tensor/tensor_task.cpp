#include "bimetal/parallel/tensor/tensor_task.h"

#include <utility>

namespace bimetal::parallel::tensor {

TensorTask::TensorTask(const task::Task& task, std::shared_ptr<const task::TensorRanks> ranks)
    : task_(task), ranks_(std::move(ranks)) {}

torch::Tensor TensorTask::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  const task::TensorScope scope(ranks_);
  return task_.loss_sum(outputs, batch);
}

std::vector<task::Metric> TensorTask::metrics() const {
  auto metrics = task_.metrics();
  for (auto& metric : metrics) {
    if (!metric.sum) continue;
    metric.sum = [ranks = ranks_, alone = std::move(metric.sum)](const task::Values& outputs,
                                                                 const task::Values& batch) {
      const task::TensorScope scope(ranks);
      return alone(outputs, batch);
    };
  }
  return metrics;
}

}  // namespace bimetal::parallel::tensor
