#include "bimetal/parallel/tensor/tensor_model.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/parameter_check.h"
#include "bimetal/parallel/tensor/sequence_ranks.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel::tensor {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{8} << 20;

task::Unit together(task::Unit unit, const std::shared_ptr<const GroupRanks>& ranks) {
  unit.forward = [ranks, alone = std::move(unit.forward)](const task::Values& inputs) {
    const task::TensorScope scope(ranks);
    return alone(inputs);
  };
  return unit;
}

/// The same, in sequences of which each rank has a part.
task::Unit in_sequence(task::Unit unit, const std::shared_ptr<const GroupRanks>& ranks) {
  unit.forward = [ranks, alone = std::move(unit.forward)](task::Values inputs) {
    const auto length = take_length(inputs);
    const task::TensorScope scope(std::make_shared<SequenceRanks>(ranks, length));
    return with_length(alone(inputs), length);
  };
  return unit;
}

}  // namespace

TensorModel::TensorModel(const task::Model& whole, std::shared_ptr<const GroupRanks> ranks,
                         Cuts cuts, Between between, Values values)
    : ranks_(std::move(ranks)), cuts_(std::move(cuts)), between_(between) {
  if (values == Values::of_rank_0) take_values_of_rank_0(whole);
  const torch::NoGradGuard no_grad;
  for (const auto& named : whole.named_parameters()) {
    auto tensor = named.tensor;
    if (cuts_.has(named.name)) {
      tensor.set_data(part_of(named, values));
    } else {
      kept_whole_.push_back(tensor);
    }
  }
  const auto computed = between_ == Between::parts ? in_sequence : together;
  for (const auto& unit : whole.units) model_.units.push_back(computed(unit, ranks_));
}

void TensorModel::take_values_of_rank_0(const task::Model& whole) const {
  const auto& group = ranks_->group();
  check_same_on_all_ranks(whole, group, ranks_->timeout());
  broadcast_model(whole, 0, group, kMessageBytes, ranks_->timeout());
}

torch::Tensor TensorModel::part_of(const task::NamedTensor& parameter, Values values) const {
  const auto& [name, tensor] = parameter;
  const int rank = ranks_->group().rank();
  if (values == Values::of_rank_0) return cuts_.part(name, tensor.detach(), rank);
  return torch::empty(cuts_.part_sizes(name, rank), tensor.options().requires_grad(false));
}

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
