#include "bimetal/parallel/tensor/tensor_model.h"

#include <torch/torch.h>

#include <utility>

#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/parameter_check.h"
#include "bimetal/parallel/tensor_buffer.h"

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

}  // namespace

TensorModel::TensorModel(const task::Model& whole, std::shared_ptr<const GroupRanks> ranks)
    : ranks_(std::move(ranks)), cuts_(whole, ranks_->weights()) {
  const auto& group = ranks_->group();
  const auto parameters = whole.named_parameters();
  check_same_on_all_ranks(whole, group, ranks_->timeout());
  for (const auto& tensors : {parameters, whole.named_buffers()}) {
    std::vector<torch::Tensor> values;
    for (const auto& named : tensors) values.push_back(named.tensor);
    broadcast_tensors(values, 0, group, kMessageBytes, ranks_->timeout());
  }
  const torch::NoGradGuard no_grad;
  for (const auto& named : parameters) {
    auto tensor = named.tensor;
    if (cuts_.has(named.name)) {
      tensor.set_data(cuts_.part(named.name, tensor.detach(), group.rank()));
    } else {
      kept_whole_.push_back(tensor);
    }
  }
  for (const auto& unit : whole.units) model_.units.push_back(together(unit, ranks_));
}

std::vector<task::NamedTensor> TensorModel::gather(std::span<const task::NamedTensor> mine) const {
  const torch::NoGradGuard no_grad;
  auto group = ranks_->group();
  std::vector<task::NamedTensor> whole;
  for (const auto& [name, tensor] : mine) {
    const auto own = tensor.detach().to(torch::kCPU).contiguous();
    const bool in_parts = cuts_.has(name) && own.dim() > 0;
    const auto deadline = Deadline::after(ranks_->timeout());
    if (group.rank() != 0) {
      if (in_parts) group.send(tensor_buffer(own), 0, 0, deadline).wait();
      continue;
    }
    std::vector<torch::Tensor> parts = {own};
    for (int rank = 1; in_parts && rank < group.size(); ++rank) {
      parts.push_back(torch::empty(cuts_.part_sizes(name, rank), own.options()));
      group.recv(tensor_buffer(parts.back()), rank, 0, deadline).wait();
    }
    whole.push_back({name, in_parts ? cuts_.join(name, parts) : own});
  }
  return whole;
}

}  // namespace bimetal::parallel::tensor
