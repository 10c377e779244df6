#include "golden/training_run.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "bimetal/data/prefetch.h"
#include "bimetal/optim/layer_wise.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "bimetal/task/task.h"
#include "bimetal/train/step.h"
#include "golden/stage_worker.h"
#include "golden/tasks.h"
#include "support/thread_ranks.h"

namespace bimetal::golden {

namespace {

/// An epsilon against which gradients count that are 0 but for rounding.
torch::optim::AdamWOptions adamw_options() {
  return torch::optim::AdamWOptions(1e-3).weight_decay(0.1).eps(1e-3);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optimizer kind,
                                                        std::vector<torch::Tensor> parameters) {
  if (kind == Optimizer::adam) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
  }
  if (kind == Optimizer::adamw) {
    return std::make_unique<torch::optim::AdamW>(parameters, adamw_options());
  }
  if (kind == Optimizer::lars) {
    return std::make_unique<optim::Lars>(
        parameters, optim::LarsOptions(0.05).weight_decay(1e-3).trust_coefficient(0.1));
  }
  if (kind == Optimizer::lamb) {
    return std::make_unique<optim::Lamb>(parameters, optim::LambOptions(0.02).weight_decay(1e-2));
  }
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.02).momentum(0.9));
}

/// As optim::make_shard_optimizer has it for the job file.
std::unique_ptr<torch::optim::Optimizer> make_shard_optimizer(
    const TrainingPlan& plan, int rank, std::vector<torch::Tensor> parameters) {
  job::JobConfig job;
  job.train.learning_rate = 1e-3;
  if (plan.optimizer == Optimizer::adam) job.train.optimizer = "adam";
  if (plan.optimizer == Optimizer::adamw) {
    job.train.optimizer = "adamw";
    job.train.weight_decay = 0.1;
    job.train.epsilon = 1e-3;
  }
  job.zero.offload_optimizer = of_rank(plan.offload, rank);
  job.zero.offload_path = std::filesystem::temp_directory_path().string();
  return optim::make_shard_optimizer(job, std::move(parameters), {});
}

train::StepOptions step_options(const TrainingPlan& plan) {
  train::StepOptions options;
  options.micro_batch = plan.micro_batch;
  options.seed = seed;
  options.precision = plan.precision;
  options.update = plan.update;
  options.recompute = plan.recompute;
  options.parallel.bucket_bytes = 16 << 10;
  options.parallel.first_bucket_bytes = 1 << 10;
  options.parallel.form_island = plan.form_island;
  return options;
}

/// A replica's tensor ranks stand beside each other.
comm::Group tensor_ranks_of(const TrainingPlan& plan, comm::Group world) {
  const auto width = static_cast<int>(plan.tensor.size());
  comm::Group mine;
  for (int first = 0; first < world.size(); first += width) {
    std::vector<int> ranks(plan.tensor.size());
    std::iota(ranks.begin(), ranks.end(), first);
    if (auto group = world.subgroup(ranks)) mine = std::move(group);
  }
  return mine;
}

comm::Group replicas_of(const TrainingPlan& plan, comm::Group world) {
  const auto width = static_cast<int>(plan.tensor.size());
  comm::Group mine;
  for (int place = 0; place < width; ++place) {
    std::vector<int> ranks;
    for (int rank = place; rank < world.size(); rank += width) ranks.push_back(rank);
    if (auto group = world.subgroup(ranks)) mine = std::move(group);
  }
  return mine;
}

// For each set of tensor ranks, which stand beside each other: the tensors that they have parts of.
std::vector<std::vector<torch::Tensor>> joined(
    const TrainingPlan& plan, const std::vector<std::vector<torch::Tensor>>& by_rank) {
  const auto model = make_start(*make_task(plan), seed, plan.dtype);
  const auto shape = shape_of(plan);
  const auto by_stage = parallel::cuts_of_stages(model, part_weights_of(plan));
  const auto named = model.named_parameters();
  std::vector<std::vector<torch::Tensor>> sets;
  for (std::size_t first = 0; first < by_rank.size();) {
    const int stage = parallel::place_of(shape, static_cast<int>(first)).stage;
    const auto& cuts = by_stage[static_cast<std::size_t>(stage)];
    auto whole = by_rank[first];
    for (std::size_t i = 0; i < whole.size(); ++i) {
      if (!whole[i].defined()) continue;
      const auto& name = named[i].name;
      const bool cut = cuts && cuts->has(name);
      if (cut) whole[i] = torch::zeros_like(named[i].tensor.detach());
      for (int rank = 0; rank < shape.tensor_of(stage); ++rank) {
        const auto mine = by_rank[first + static_cast<std::size_t>(rank)][i].detach();
        if (cut) {
          cuts->put(name, mine, rank, whole[i]);
        } else {
          EXPECT_TRUE(mine.equal(whole[i])) << name;
        }
      }
    }
    sets.push_back(std::move(whole));
    first += static_cast<std::size_t>(shape.tensor_of(stage));
  }
  return sets;
}

// One rank's work.
class Worker {
 public:
  Worker(const TrainingPlan& plan, const task::Task& task, const task::Model& model,
         comm::Group world)
      : plan_(plan),
        data_(task.training()),
        sample_group_(model.sample_group()),
        tensor_(make_tensor(plan, model, world)),
        replicas_(tensor_ ? replicas_of(plan, world) : world),
        staged_(make_staged(plan, task, model, world)),
        sharded_(staged_ ? staged_->sharded : make_sharded(model)),
        optimizer_(make_own_optimizer(model)),
        tensor_task_(task, tensor_ ? tensor_->ranks() : nullptr),
        step_(make_step(task, model)) {}

  std::vector<double> train() {
    expect_whole_in_half();
    auto sampler = data::make_sampler(*data_, seed, sample_group_);
    const auto& first = plan_.shares.front();
    const auto global_batch = std::accumulate(first.begin(), first.end(), std::int64_t{0});
    std::vector<double> losses;
    for (int number = 1; number <= plan_.steps; ++number) {
      const auto& shares = plan_.shares[(number - 1) % plan_.shares.size()];
      losses.push_back(step(number, sampler.deal(shares, global_batch)));
    }
    return losses;
  }

  // All of the model's at the end, then its buffers, or its parts of them; on rank 0 alone where
  // they are in shards for good.
  std::vector<torch::Tensor> tensors(const task::Model& model) const {
    if (staged_) return staged_->among(model);
    const task::ModelState state(model);
    auto parameters = state.parameters;
    if (plan_.zero_level == 3 || (sharded_ && plan_.form.half)) {
      const int root = tensor_ ? parallel::shard::ShardedModel::kEveryRank : 0;
      parameters = sharded_->gather([](const auto& piece) { return piece.tensor; }, root);
    }
    if (parameters.empty()) return {};
    auto all = task::tensors_of(parameters);
    for (const auto& buffer : state.buffers) all.push_back(buffer.tensor);
    return all;
  }

 private:
  static std::shared_ptr<const parallel::tensor::TensorModel> make_tensor(const TrainingPlan& plan,
                                                                          const task::Model& model,
                                                                          comm::Group world) {
    if (plan.tensor.empty() || plan.mesh.stages > 1) return nullptr;
    return std::make_shared<parallel::tensor::TensorModel>(
        model,
        parallel::tensor::GroupRanks::make(tensor_ranks_of(plan, std::move(world)), plan.tensor,
                                           std::chrono::seconds(30), plan.form_island),
        parallel::tensor::Cuts(model, plan.tensor), plan.between);
  }

  std::shared_ptr<parallel::shard::ShardedModel> make_sharded(const task::Model& model) const {
    if (plan_.zero_level == 0) return nullptr;
    return std::make_shared<parallel::shard::ShardedModel>(
        tensor_ ? tensor_->model() : model, replicas_,
        parallel::shard::ShardedModelOptions{
            .level = plan_.zero_level,
            .weights = plan_.shards,
            .flat_bytes = 16 << 10,
            .kept = of_rank(plan_.kept, replicas_.rank()),
            .folder = std::filesystem::temp_directory_path(),
            .form = plan_.form,
            .whole = tensor_ ? tensor_->kept_whole() : std::vector<torch::Tensor>(),
            .copies = plan_.copies,
            .form_island = plan_.form_island});
  }

  static std::optional<StageWorker> make_staged(const TrainingPlan& plan, const task::Task& task,
                                                const task::Model& model, comm::Group group) {
    if (plan.mesh.stages == 1) return std::nullopt;
    return make_stage_worker(plan, task, model, std::move(group));
  }

  std::unique_ptr<torch::optim::Optimizer> make_own_optimizer(const task::Model& model) const {
    const bool adam = plan_.optimizer == Optimizer::adam || plan_.optimizer == Optimizer::adamw;
    if (!sharded_ || !adam) return make_optimizer(plan_.optimizer, optimized(model));
    auto made = make_shard_optimizer(plan_, replicas_.rank(), optimized(model));
    parallel::shard::follow_update(sharded_, *made);
    return made;
  }

  std::vector<torch::Tensor> optimized(const task::Model& model) const {
    if (staged_ && !sharded_) return staged_->parameters;
    if (!sharded_) return model.parameters();
    std::vector<torch::Tensor> pieces;
    for (const auto& piece : sharded_->pieces()) pieces.push_back(piece.tensor);
    return pieces;
  }

  std::unique_ptr<train::TrainingStep> make_step(const task::Task& task, const task::Model& model) {
    auto options = step_options(plan_);
    if (plan_.update_in_backward) {
      sharded_->update_in_backward([this] {
        ++updates_in_backward_;
        optimizer_->step();
      });
    }
    if (staged_) {
      options.stage = staged_->compute;
      return std::make_unique<train::TrainingStep>(task, model, *optimizer_, staged_->sync,
                                                   options);
    }
    if (tensor_) {
      std::shared_ptr<parallel::ParameterStore> replicas = sharded_;
      if (!sharded_) {
        replicas = std::make_shared<parallel::ReplicatedModel>(tensor_->model(), replicas_,
                                                               options.parallel);
      }
      return std::make_unique<train::TrainingStep>(
          tensor_task_, sharded_ ? sharded_->model() : tensor_->model(), *optimizer_,
          parallel::Sync(replicas,
                         {std::make_shared<parallel::tensor::TensorSums>(replicas, tensor_)}),
          options);
    }
    if (sharded_) {
      return std::make_unique<train::TrainingStep>(task, sharded_->model(), *optimizer_, sharded_,
                                                   options);
    }
    return std::make_unique<train::TrainingStep>(task, model, *optimizer_, replicas_, options);
  }

  // Otherwise nothing would be compared with what autocast does.
  void expect_whole_in_half() const {
    const bool whole = plan_.zero_level == 1 || plan_.zero_level == 2;
    if (!plan_.form.half || !whole || staged_ || plan_.copies) return;
    EXPECT_TRUE(std::ranges::any_of(sharded_->trained(), [&](const auto& trained) {
      return trained.tensor.scalar_type() == *plan_.form.half;
    }));
  }

  // The step's mean loss over all ranks.
  double step(int number, const data::EpochSampler::Step& plan) {
    const int lane = staged_ ? staged_->compute->lanes().mine() : replicas_.rank();
    const auto fetch = [&] { return data_->batch(plan.of_rank(lane)); };
    const int before = updates_in_backward_;
    const auto result = step_->run(number, plan, fetch, {});
    EXPECT_TRUE(result.applied);
    if (plan_.update_in_backward && !sharded_->pieces().empty()) {
      EXPECT_GT(updates_in_backward_, before + 1) << "of several flat tensors";
    }
    double loss = 0;
    for (const auto& rank : result.figures) loss += rank.loss_sum;
    return loss / static_cast<double>(plan.weight());
  }

  const TrainingPlan& plan_;
  std::shared_ptr<const task::Dataset> data_;
  std::int64_t sample_group_;
  std::shared_ptr<const parallel::tensor::TensorModel> tensor_;
  comm::Group replicas_;
  std::optional<StageWorker> staged_;
  std::shared_ptr<parallel::shard::ShardedModel> sharded_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  parallel::tensor::TensorTask tensor_task_;
  std::unique_ptr<train::TrainingStep> step_;
  int updates_in_backward_ = 0;
};

}  // namespace

parallel::MeshShape shape_of(const TrainingPlan& plan) {
  auto shape = plan.mesh;
  shape.tensor = 1;
  for (const auto& weights : part_weights_of(plan)) {
    shape.parts.push_back(static_cast<int>(weights.size()));
    shape.tensor = std::max(shape.tensor, shape.parts.back());
  }
  if (std::ranges::min(shape.parts) == shape.tensor) shape.parts.clear();
  return shape;
}

parallel::PartWeights part_weights_of(const TrainingPlan& plan) {
  if (!plan.stage_tensor.empty()) return plan.stage_tensor;
  const std::vector<double> whole = {1};
  return parallel::PartWeights(static_cast<std::size_t>(plan.mesh.stages),
                               plan.tensor.empty() ? whole : plan.tensor);
}

std::unique_ptr<task::Task> make_task(const TrainingPlan& plan) {
  switch (plan.learns) {
    case Learns::images: return std::make_unique<ImageTask>(plan.dtype);
    case Learns::resnet: return std::make_unique<ImageTask>(plan.dtype, "resnet18", 32);
    case Learns::resnet_batch_norm:
      return std::make_unique<ImageTask>(plan.dtype, "resnet18", 8, 4);
    case Learns::tokens: return std::make_unique<TokenTask>();
    case Learns::gpt2: return std::make_unique<LanguageTask>("gpt2", plan.dropout, 4, plan.blocks);
    case Learns::llama:
      return std::make_unique<LanguageTask>("llama", plan.dropout, 4, plan.blocks);
    case Learns::llama8:
      return std::make_unique<LanguageTask>("llama", plan.dropout, 8, plan.blocks);
  }
  return nullptr;
}

TrainingResult train_plainly(const TrainingPlan& plan) {
  const auto optimizer = [&](std::vector<torch::Tensor> parameters) {
    return make_optimizer(plan.optimizer, std::move(parameters));
  };
  return train_plainly(*make_task(plan), {.optimizer = optimizer,
                                          .steps = plan.steps,
                                          .dtype = plan.dtype,
                                          .limits = plan.update.limits});
}

TrainingResult train(const TrainingPlan& plan) {
  auto shape = shape_of(plan);
  if (shape.even()) shape.replicas = static_cast<int>(plan.shares.front().size());
  const int world_size = shape.ranks();
  const auto task = make_task(plan);
  std::vector<task::Model> models;
  for (int rank = 0; rank < world_size; ++rank) {
    models.push_back(make_start(*task, seed + 100 + static_cast<std::uint64_t>(rank), plan.dtype));
  }

  TrainingResult result;
  std::vector<std::vector<torch::Tensor>> tensors(models.size());
  testing::run_ranks(world_size, [&](int rank, comm::Group group) {
    Worker worker(plan, *task, models[rank], group);
    auto losses = worker.train();
    tensors[rank] = worker.tensors(models[rank]);
    if (rank == 0) result.losses = std::move(losses);
  });
  result.parameters = put_together(plan, tensors);
  return result;
}

std::vector<torch::Tensor> put_together(const TrainingPlan& plan,
                                        const std::vector<std::vector<torch::Tensor>>& by_rank) {
  auto all = shape_of(plan).tensor == 1 ? by_rank : joined(plan, by_rank);
  auto whole = all[0];
  for (const auto& of_rank : all) {
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      if (!of_rank[i].defined()) continue;
      if (!whole[i].defined()) whole[i] = of_rank[i];
      EXPECT_TRUE(of_rank[i].equal(whole[i])) << "parameter " << i;
    }
  }
  return whole;
}

}  // namespace bimetal::golden
