#include "golden/training_run.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "bimetal/data/sampler.h"
#include "bimetal/models/registry.h"
#include "bimetal/parallel/data/data_parallel.h"
#include "bimetal/train/lamb.h"
#include "bimetal/train/lars.h"
#include "support/thread_ranks.h"

namespace bimetal::golden {

namespace {

constexpr models::ImageShape shape{.channels = 1, .height = 8, .width = 8, .classes = 10};
constexpr std::int64_t sample_count = 200;
constexpr std::uint64_t seed = 3;

struct Samples {
  torch::Tensor images;
  torch::Tensor labels;
};

// Noise in which the label's own six pixels are brighter: learnt within a few dozen steps.
Samples make_samples(torch::ScalarType dtype) {
  torch::manual_seed(seed);
  // Drawn in double whatever the type, so that all types see the same images.
  auto pixels = torch::randn({sample_count, shape.height * shape.width}, torch::kFloat64);
  const auto labels = torch::randint(shape.classes, {sample_count}, torch::kInt64);
  const auto bright = labels.unsqueeze(1) * 6 + torch::arange(6);
  pixels.scatter_add_(1, bright, torch::full({sample_count, 6}, 2.0, torch::kFloat64));
  return {pixels.reshape({sample_count, 1, shape.height, shape.width}).to(dtype), labels};
}

std::shared_ptr<models::Classifier> start_of_rank(int rank, torch::ScalarType dtype) {
  torch::manual_seed(seed + 100 + rank);
  auto model = models::make_model("cnn", shape);
  model->to(dtype);
  return model;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(Optimizer kind,
                                                        std::vector<torch::Tensor> parameters) {
  if (kind == Optimizer::adam) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
  }
  if (kind == Optimizer::lars) {
    return std::make_unique<train::Lars>(
        parameters, train::LarsOptions(0.05).weight_decay(1e-3).trust_coefficient(0.1));
  }
  if (kind == Optimizer::lamb) {
    return std::make_unique<train::Lamb>(parameters, train::LambOptions(0.02).weight_decay(1e-2));
  }
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.02).momentum(0.9));
}

parallel::DataParallelOptions parallel_options(const TrainingPlan& plan, comm::Group group) {
  parallel::DataParallelOptions options;
  options.bucket_bytes = 16 << 10;
  options.first_bucket_bytes = 1 << 10;
  if (plan.form_island) options.island = plan.form_island(std::move(group));
  return options;
}

// One rank's work.
class Worker {
 public:
  Worker(const TrainingPlan& plan, const Samples& samples,
         std::shared_ptr<models::Classifier> model, comm::Group group)
      : plan_(plan),
        samples_(samples),
        model_(std::move(model)),
        group_(group),
        parallel_(model_, group, parallel_options(plan, group)),
        optimizer_(make_optimizer(plan.optimizer, model_->parameters())) {}

  std::vector<double> train() {
    data::EpochSampler sampler(sample_count, seed);
    std::vector<double> losses;
    for (int step = 0; step < training_steps; ++step) {
      const auto& shares = plan_.shares[step % plan_.shares.size()];
      losses.push_back(this->step(sampler.next(shares)));
    }
    return losses;
  }

 private:
  // The step's mean loss over all ranks.
  double step(const data::EpochSampler::Step& step) {
    const auto mine = step.of_rank(group_.rank());
    double loss = 0;
    parallel_.begin_step(step.total);
    for (std::size_t begin = 0; begin < mine.size();) {
      const auto count = std::min<std::size_t>(plan_.micro_batch, mine.size() - begin);
      const bool last = begin + count == mine.size();
      loss += backward(mine.subspan(begin, count), last) / static_cast<double>(step.total);
      begin += count;
    }
    parallel_.finish_step();
    optimizer_->step();
    group_.all_reduce({&loss, 1, comm::DType::float64}).wait();
    return loss;
  }

  // The sum of the samples' losses.
  double backward(std::span<const std::int64_t> indices, bool last) {
    const auto chosen = torch::tensor(c10::ArrayRef<std::int64_t>(indices.data(), indices.size()));
    const auto logits = model_->forward(samples_.images.index_select(0, chosen));
    const auto loss = torch::cross_entropy_loss(logits, samples_.labels.index_select(0, chosen));
    const auto count = static_cast<std::int64_t>(indices.size());
    last ? parallel_.backward_last(loss, count) : parallel_.backward(loss, count);
    return loss.item<double>() * static_cast<double>(count);
  }

  const TrainingPlan& plan_;
  const Samples& samples_;
  std::shared_ptr<models::Classifier> model_;
  comm::Group group_;
  parallel::DataParallel parallel_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

TrainingResult train(const TrainingPlan& plan) {
  const int world_size = static_cast<int>(plan.shares.front().size());
  const Samples samples = make_samples(plan.dtype);
  std::vector<std::shared_ptr<models::Classifier>> models;
  for (int rank = 0; rank < world_size; ++rank) models.push_back(start_of_rank(rank, plan.dtype));

  TrainingResult result;
  testing::run_ranks(world_size, [&](int rank, comm::Group group) {
    auto losses = Worker(plan, samples, models[rank], group).train();
    if (rank == 0) result.losses = std::move(losses);
  });
  result.parameters = models[0]->parameters();
  for (const auto& model : models) {
    for (std::size_t i = 0; i < result.parameters.size(); ++i) {
      EXPECT_TRUE(model->parameters()[i].equal(result.parameters[i])) << "parameter " << i;
    }
  }
  return result;
}

}  // namespace bimetal::golden
