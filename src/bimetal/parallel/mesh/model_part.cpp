#include "bimetal/parallel/mesh/model_part.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <string>
#include <utility>

#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel {
namespace {

using tensor::TensorModel;

ModelPart part_with(const Mesh& mesh, const task::Model& whole,
                    const std::vector<std::size_t>& begins, const StageCuts& of_stages,
                    std::chrono::milliseconds timeout, tensor::Between between,
                    TensorModel::Values values, c10d::FormIsland form_island) {
  const int stage = mesh.place().stage;
  ModelPart part{pipeline::make_stage(whole, begins, mesh.shape().stages, stage), nullptr};
  if (of_stages.empty() || !of_stages[static_cast<std::size_t>(stage)]) return part;
  const auto& cuts = of_stages[static_cast<std::size_t>(stage)];
  part.tensor = std::make_shared<TensorModel>(
      part.stage.model,
      tensor::GroupRanks::make(mesh.tensor(), cuts->weights(), timeout, std::move(form_island)),
      *cuts, between, values);
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

StageCuts cuts_of_stages(const task::Model& whole, const PartWeights& weights) {
  StageCuts cuts;
  for (const auto& of_stage : weights) {
    auto& own = cuts.emplace_back();
    if (of_stage.size() > 1) own.emplace(whole, of_stage);
  }
  return cuts;
}

ModelPart take_part(const Mesh& mesh, const task::Model& whole,
                    const std::vector<std::size_t>& begins, const StageCuts& cuts,
                    std::chrono::milliseconds timeout, tensor::Between between,
                    c10d::FormIsland form_island) {
  return part_with(mesh, whole, begins, cuts, timeout, between, TensorModel::Values::of_rank_0,
                   std::move(form_island));
}

ModelPart take_hollow_part(const Mesh& mesh, const task::Model& whole,
                           const std::vector<std::size_t>& begins, const StageCuts& cuts,
                           std::chrono::milliseconds timeout, c10d::FormIsland form_island) {
  auto part = part_with(mesh, whole, begins, cuts, timeout, tensor::Between::whole,
                        TensorModel::Values::later, std::move(form_island));
  give_memory(part.stage.model.named_parameters());
  return part;
}

Error named(const Error& error, const MeshShape& shape, int own) {
  std::string text = error.what();
  const auto says = [&, said = text](const std::string& place) {
    return said.find(place) != std::string::npos;
  };
  const int about = error.rank().value_or(own);
  if (about != own && about >= 0 && about < shape.ranks()) {
    const auto place = name_of(shape, about);
    if (!says(place)) text += fmt::format("; rank {} is {}", about, place);
  }
  const auto place = name_of(shape, own);
  if (!says(place)) text = fmt::format("{} (rank {}): {}", place, own, text);
  return {error.code(), text, error.rank()};
}

}  // namespace bimetal::parallel
