#include "golden/training_run.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <numeric>

#include "bimetal/data/batch_feed.h"
#include "bimetal/optim/lamb.h"
#include "bimetal/optim/lars.h"
#include "bimetal/train/step.h"
#include "golden/tasks.h"
#include "support/thread_ranks.h"

namespace bimetal::golden {

namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optimizer kind,
                                                        std::vector<torch::Tensor> parameters) {
  if (kind == Optimizer::adam) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
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

train::StepOptions step_options(const TrainingPlan& plan, comm::Group group) {
  train::StepOptions options;
  options.micro_batch = plan.micro_batch;
  options.seed = seed;
  options.update = plan.update;
  options.recompute = plan.recompute;
  options.parallel.bucket_bytes = 16 << 10;
  options.parallel.first_bucket_bytes = 1 << 10;
  if (plan.form_island) options.parallel.island = plan.form_island(std::move(group));
  return options;
}

// One rank's work.
class Worker {
 public:
  Worker(const TrainingPlan& plan, const task::Task& task, const task::Model& model,
         comm::Group group)
      : plan_(plan),
        data_(task.training()),
        rank_(group.rank()),
        optimizer_(make_optimizer(plan.optimizer, model.parameters())),
        step_(task, model, *optimizer_, group, step_options(plan, group)) {}

  std::vector<double> train() {
    auto sampler = data::make_sampler(*data_, seed);
    const auto& first = plan_.shares.front();
    const auto global_batch = std::accumulate(first.begin(), first.end(), std::int64_t{0});
    std::vector<double> losses;
    for (int number = 1; number <= plan_.steps; ++number) {
      const auto& shares = plan_.shares[(number - 1) % plan_.shares.size()];
      losses.push_back(step(number, sampler.deal(shares, global_batch)));
    }
    return losses;
  }

 private:
  // The step's mean loss over all ranks.
  double step(int number, const data::EpochSampler::Step& plan) {
    const auto fetch = [&] { return data_->batch(plan.of_rank(rank_)); };
    const auto result = step_.run(number, plan, fetch, false);
    EXPECT_TRUE(result.applied);
    double loss = 0;
    for (const auto& rank : result.figures) loss += rank.loss_sum;
    return loss / static_cast<double>(plan.weight());
  }

  const TrainingPlan& plan_;
  std::shared_ptr<const task::Dataset> data_;
  int rank_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  train::TrainingStep step_;
};

}  // namespace

std::unique_ptr<task::Task> make_task(const TrainingPlan& plan) {
  switch (plan.learns) {
    case Learns::images: return std::make_unique<ImageTask>(plan.dtype);
    case Learns::resnet: return std::make_unique<ImageTask>(plan.dtype, "resnet18", 32);
    case Learns::tokens: return std::make_unique<TokenTask>();
    case Learns::gpt2: return std::make_unique<LanguageTask>("gpt2", plan.dropout);
    case Learns::llama: return std::make_unique<LanguageTask>("llama", plan.dropout);
  }
  return nullptr;
}

TrainingResult train(const TrainingPlan& plan) {
  const int world_size = static_cast<int>(plan.shares.front().size());
  const auto task = make_task(plan);
  std::vector<task::Model> models;
  for (int rank = 0; rank < world_size; ++rank) {
    models.push_back(make_start(*task, seed + 100 + static_cast<std::uint64_t>(rank), plan.dtype));
  }

  TrainingResult result;
  testing::run_ranks(world_size, [&](int rank, comm::Group group) {
    auto losses = Worker(plan, *task, models[rank], group).train();
    if (rank == 0) result.losses = std::move(losses);
  });
  result.parameters = models[0].parameters();
  for (const auto& model : models) {
    for (std::size_t i = 0; i < result.parameters.size(); ++i) {
      EXPECT_TRUE(model.parameters()[i].equal(result.parameters[i])) << "parameter " << i;
    }
  }
  return result;
}

}  // namespace bimetal::golden
