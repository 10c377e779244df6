// Training steps of a language model on random tokens, by the step that `bimetal train` takes:
// `gpt2_step MODEL CONTEXT BATCH STEPS THREADS`. Prints tokens per second (without the first step,
// in which memory is fetched), peak memory and the last loss as JSON. For gpt2_step.py.

#include <fmt/format.h>
#include <sys/resource.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/group.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/net/mesh.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/train/step.h"

namespace {

using namespace bimetal;

/// Blocks of tokens drawn once.
class RandomText final : public task::Dataset {
 public:
  RandomText(std::int64_t blocks, std::int64_t block, std::int64_t vocabulary)
      : tokens_(torch::randint(vocabulary, {blocks, block + 1})) {}
  std::int64_t size() const override { return tokens_.size(0); }
  std::int64_t weight(std::int64_t /*sample*/) const override { return tokens_.size(1) - 1; }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    const auto chosen = tokens_.index_select(
        0, torch::tensor(std::vector<std::int64_t>(samples.begin(), samples.end())));
    const auto last = tokens_.size(1) - 1;
    return {chosen.narrow(1, 0, last).contiguous(), chosen.narrow(1, 1, last).contiguous()};
  }

 private:
  torch::Tensor tokens_;
};

class NextToken final : public task::Task {
 public:
  NextToken(models::LanguageModelConfig model, std::int64_t blocks)
      : model_(std::move(model)),
        text_(std::make_shared<RandomText>(blocks, model_.context, model_.vocabulary)) {}
  task::Model make_model() const override { return models::make_language_model(model_); }
  std::shared_ptr<const task::Dataset> training() const override { return text_; }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override {
    return torch::cross_entropy_loss(outputs.front().flatten(0, 1), batch.back().flatten(), {},
                                     at::Reduction::Sum);
  }

 private:
  models::LanguageModelConfig model_;
  std::shared_ptr<const task::Dataset> text_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    fmt::print(stderr, "usage: gpt2_step MODEL CONTEXT BATCH STEPS THREADS\n");
    return 2;
  }
  const auto number = [&](int at) { return std::strtol(argv[at], nullptr, 10); };
  const std::int64_t context = number(2), batch = number(3), steps = number(4);
  torch::set_num_threads(static_cast<int>(number(5)));
  torch::manual_seed(1);
  const NextToken task(models::resized(models::language_preset(argv[1]), {.context = context}),
                       steps * batch);
  const auto model = task.make_model();
  job::TrainConfig config;
  config.optimizer = "adamw";
  config.learning_rate = 1e-4;
  const auto optimizer = optim::make_optimizer(config, model.parameters());
  train::TrainingStep step(task, model, *optimizer, comm::make_group(net::make_solo_mesh("here")),
                           {});
  data::EpochSampler sampler(steps * batch, 1);
  Stopwatch watch;
  double loss = 0;
  for (std::int64_t i = 1; i <= steps; ++i) {
    const auto plan = sampler.deal(std::vector<std::int64_t>{1}, batch);
    const auto result = step.run(
        i, plan, [&] { return task.training()->batch(plan.indices); }, false);
    loss = result.figures[0].loss_sum / static_cast<double>(batch * context);
    if (i == 1) watch = Stopwatch();
  }
  const auto seconds = watch.seconds();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print(R"({{"tokens_per_s": {}, "peak_kb": {}, "loss": {}}})"
             "\n",
             static_cast<double>((steps - 1) * batch * context) / seconds, usage.ru_maxrss, loss);
}
