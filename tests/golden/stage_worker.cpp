#include "golden/stage_worker.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "bimetal/parallel/data/replicated_model.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/task/task.h"

namespace bimetal::golden {

using namespace std::chrono_literals;

std::vector<torch::Tensor> StageWorker::among(const task::Model& whole) const {
  auto own = parameters, values = parameters;
  if (std::ranges::any_of(parameters, parallel::shard::is_hollow)) {
    own = task::tensors_of(sharded->trained());
    values = task::tensors_of(sharded->gather([](const auto& piece) { return piece.tensor; },
                                              parallel::shard::ShardedModel::kEveryRank));
  }
  auto all = whole.parameters();
  for (auto& parameter : all) {
    const auto ours = std::ranges::find_if(
        own, [&](const torch::Tensor& tensor) { return tensor.is_same(parameter); });
    parameter = ours == own.end() ? torch::Tensor()
                                  : values.at(static_cast<std::size_t>(ours - own.begin()));
  }
  return all;
}

StageWorker make_stage_worker(const TrainingPlan& plan, const task::Task& task,
                              const task::Model& model, comm::Group group) {
  parallel::broadcast_tensors(model.parameters(), 0, group, 1 << 20, 60s);
  const auto shape = shape_of(plan);
  const auto mesh = std::make_shared<const parallel::Mesh>(group, shape);
  const auto begins = parallel::pipeline::begins_of(
      plan.cuts, static_cast<std::size_t>(shape.stages * plan.chunks), model.units.size());
  const auto cuts = parallel::cuts_of_stages(model, part_weights_of(plan));
  auto part = parallel::take_part(*mesh, model, begins, cuts, 60s, plan.between, plan.form_island);
  const auto ranks = part.tensor_ranks();
  const auto tensor = part.tensor;
  auto stage = std::move(part.stage);
  StageWorker made;
  made.task = std::make_shared<parallel::tensor::TensorTask>(task, ranks);
  made.parameters = stage.model.parameters();
  std::shared_ptr<parallel::ParameterStore> own;
  // A stage has as many shards as replicas.
  auto shards = plan.shards;
  shards.resize(std::min(shards.size(), static_cast<std::size_t>(mesh->replicas().size())));
  if (plan.zero_level == 0) {
    own = std::make_shared<parallel::ReplicatedModel>(
        stage.model, mesh->replicas(),
        parallel::ReplicatedModelOptions{.bucket_bytes = 16 << 10,
                                         .first_bucket_bytes = 1 << 10,
                                         .form_island = plan.form_island});
  } else {
    own = made.sharded = std::make_shared<parallel::shard::ShardedModel>(
        stage.model, mesh->replicas(),
        parallel::shard::ShardedModelOptions{
            .level = plan.zero_level,
            .weights = shards,
            .flat_bytes = 16 << 10,
            .kept = of_rank(plan.kept, mesh->replicas().rank()),
            .folder = std::filesystem::temp_directory_path(),
            .form = plan.form,
            .whole = tensor ? tensor->kept_whole() : std::vector<torch::Tensor>(),
            .stage = parallel::pipeline::passes_of_stage(*mesh, stage.tied),
            .form_island = plan.form_island});
    stage = parallel::pipeline::with_units(std::move(stage), made.sharded->model());
  }
  const auto sums =
      std::make_shared<parallel::pipeline::StageSums>(mesh, own, stage.tied, 60s, tensor);
  std::vector<std::shared_ptr<parallel::ExtraSums>> extra;
  if (tensor) extra.push_back(std::make_shared<parallel::tensor::TensorSums>(own, tensor));
  extra.push_back(sums);
  made.sync = {own, extra};
  const auto vendor = plan.vendor ? plan.vendor(group.rank()) : c10d::VendorLibrary();
  made.compute =
      std::make_shared<train::StageCompute>(*made.task, mesh, std::move(stage), sums,
                                            train::StageOptions{.precision = plan.precision,
                                                                .recompute = plan.recompute,
                                                                .schedule = plan.schedule,
                                                                .chunks = plan.chunks,
                                                                .micro_batches = plan.micro_batches,
                                                                .micro_batch = plan.micro_batch,
                                                                .speeds = plan.speeds,
                                                                .learns_speeds = plan.learns_speeds,
                                                                .tensor = ranks,
                                                                .vendor = vendor,
                                                                .timeout = 60s});
  return made;
}

}  // namespace bimetal::golden
