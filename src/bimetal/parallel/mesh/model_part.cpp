#include "bimetal/parallel/mesh/model_part.h"

#include <torch/torch.h>

#include <utility>

#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/task/model_state.h"

namespace bimetal::parallel {
namespace {

using tensor::TensorModel;

ModelPart part_with(const Mesh& mesh, const task::Model& whole,
                    const std::vector<std::size_t>& begins, const std::optional<tensor::Cuts>& cuts,
                    std::chrono::milliseconds timeout, tensor::Between between,
                    TensorModel::Values values) {
  const int stages = mesh.shape().stages;
  ModelPart part{pipeline::make_stage(whole, begins, stages, mesh.place().stage), nullptr};
  if (!cuts) return part;
  part.tensor = std::make_shared<TensorModel>(
      part.stage.model, tensor::GroupRanks::make(mesh.tensor(), cuts->weights(), timeout), *cuts,
      between, values);
  part.stage = with_units(std::move(part.stage), part.tensor->model());
  return part;
}

void give_memory(const std::vector<task::NamedTensor>& tensors) {
  const torch::NoGradGuard no_grad;
  for (auto tensor : task::tensors_of(tensors)) {
    if (!shard::is_hollow(tensor)) continue;
    tensor.set_data(torch::empty(tensor.sizes(), tensor.options().requires_grad(false)));
  }
}

}  // namespace

ModelPart take_part(const Mesh& mesh, const task::Model& whole,
                    const std::vector<std::size_t>& begins, const std::optional<tensor::Cuts>& cuts,
                    std::chrono::milliseconds timeout, tensor::Between between) {
  return part_with(mesh, whole, begins, cuts, timeout, between, TensorModel::Values::of_rank_0);
}

ModelPart take_hollow_part(const Mesh& mesh, const task::Model& whole,
                           const std::vector<std::size_t>& begins,
                           const std::optional<tensor::Cuts>& cuts,
                           std::chrono::milliseconds timeout) {
  auto part = part_with(mesh, whole, begins, cuts, timeout, tensor::Between::whole,
                        TensorModel::Values::later);
  give_memory(part.stage.model.named_parameters());
  return part;
}

}  // namespace bimetal::parallel
