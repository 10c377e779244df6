// Loops of a program's own with any module: precision, clipping, micro-batches, shards, checkpoints
// and evaluation, each the same as on one device, or an error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/bimetal.h"
#include "bimetal/checkpoint/safetensors.h"
#include "support/temporary_folder.h"
#include "unit/api/forked_ranks.h"
#include "unit/train/training_job.h"

namespace bimetal {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kSamples = 22, kNoTarget = -100;

/// Sequences of 1 to 4 numbers, each with a class of its own; padded ones count for nothing.
struct Sequences : Dataset {
  std::int64_t size() const override { return kSamples; }
  std::int64_t weight(std::int64_t sample) const override { return 1 + sample % 4; }
  Values batch(std::span<const std::int64_t> samples) const override {
    const auto count = std::ssize(samples);
    auto x = torch::zeros({count, 4, 3}, torch::kFloat64);
    auto y = torch::full({count, 4}, kNoTarget, torch::kInt64);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto sample = samples[static_cast<std::size_t>(i)];
      for (std::int64_t at = 0; at < weight(sample); ++at) {
        x[i][at] =
            torch::arange(3, torch::kFloat64).add(0.7 * static_cast<double>(sample + at)).sin();
        y[i][at] = (sample + 2 * at) % 5;
      }
    }
    return {x, y};
  }
};

torch::Tensor mean_loss(const torch::Tensor& logits, const Batch& piece) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1), piece.y.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kNoTarget));
}

torch::nn::Sequential make_net() {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Linear(3, 7), torch::nn::Tanh(),
                            torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})),
                            torch::nn::Linear(7, 5));
  net->to(torch::kFloat64);
  return net;
}

struct Plan {
  int ranks = 1;
  DataParallelOptions options = {};
  std::vector<double> weights = {};  ///< of the ranks' shares
  std::int64_t steps = 7;            ///< two epochs have eight
  std::filesystem::path dir = {};    ///< goes on with what is there, and saves at the end
  bool by_loss = false;              ///< step() gets the loss, not a function
};

/// One process's program. The model as a file, and what evaluation says.
int run(const Plan& plan, const std::filesystem::path& output) {
  auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
  auto net = make_net();
  DataParallel trainer(net, job, plan.options);
  torch::optim::Adam adam(trainer.parameters(), 0.02);
  BalancedOptions options = {.global_batch = 6, .epochs = 2, .steps = plan.steps};
  if (!plan.weights.empty()) options.balance = balance::Policy::Fixed;
  options.weights = plan.weights;
  if (!plan.dir.empty()) options.from = trainer.resume(plan.dir, adam);
  const auto data = std::make_shared<Sequences>();
  for (auto& batch : job.balanced(data, options)) {
    if (plan.by_loss) {
      trainer.step(mean_loss(net->forward(batch.x), batch), adam);
      continue;
    }
    trainer.step(adam, [&](const Batch& piece) {
      EXPECT_EQ(piece.step, batch.step);
      return mean_loss(trainer.forward(piece.x), piece);
    });
  }
  if (!plan.dir.empty()) trainer.save(plan.dir, adam);
  const auto told =
      trainer.evaluate(data,
                       [&](const Batch& batch) {
                         const auto logits = trainer.forward(batch.x);
                         const auto counted = batch.y != kNoTarget;
                         return Values{mean_loss(logits, batch) * counted.sum(),
                                       ((logits.argmax(2) == batch.y) & counted).sum()};
                       },
                       {"accuracy"});
  EXPECT_EQ(told.metrics.at(0).name, "accuracy");
  trainer.save_model(output);
  if (job.rank() == 0) {
    std::ofstream(output.string() + ".told")
        << std::hexfloat << told.loss << " " << told.metrics.at(0).value;
  }
  return ::testing::Test::HasFailure() ? 1 : 0;
}

void run_on(const Plan& plan, const std::filesystem::path& output) {
  const auto statuses = test::run_forked_ranks(plan.ranks, [&](int) { return run(plan, output); });
  ASSERT_EQ(statuses, std::vector<int>(static_cast<std::size_t>(plan.ranks), 0));
}

double difference(const std::filesystem::path& one, const std::filesystem::path& other) {
  return train::test::relative_difference(checkpoint::read_safetensors(one),
                                          checkpoint::read_safetensors(other));
}

double told_loss(const std::filesystem::path& of) {
  std::ifstream file(of.string() + ".told");
  std::string text;
  file >> text;
  return std::stod(text);
}

DataParallelOptions at_level(int level, std::int64_t micro_batch = 0) {
  return {.micro_batch = micro_batch,
          .limits = {.norm = 0.3},
          .zero = {.level = level,
                   .shards = level > 0 ? std::vector<double>{2, 1} : std::vector<double>()}};
}

TEST(OwnLoop, AnyShardsAndPiecesGiveTheResultOfOneDevice) {
  const test::TemporaryFolder folder;
  run_on({.options = at_level(0)}, folder / "one");
  for (const int level : {0, 1, 2, 3}) {
    const auto file = folder / ("level" + std::to_string(level));
    run_on({.ranks = 2, .options = at_level(level, 2), .weights = {3, 1}}, file);
    EXPECT_LT(difference(file, folder / "one"), 1e-12) << level;
    EXPECT_NEAR(told_loss(file), told_loss(folder / "one"), 1e-12) << level;
  }
  for (const int level : {0, 1, 2}) {
    const auto file = folder / ("loss" + std::to_string(level));
    run_on({.ranks = 2, .options = at_level(level), .weights = {1, 0}, .by_loss = true}, file);
    EXPECT_LT(difference(file, folder / "one"), 1e-12) << level;
  }
  auto recomputed = at_level(3);
  recomputed.recompute = "all";
  run_on({.ranks = 2, .options = recomputed, .weights = {1, 0}}, folder / "recomputed");
  EXPECT_LT(difference(folder / "recomputed", folder / "one"), 1e-12);
}

/// The states of bimetal::AdamW, in shards and on a disk, through a checkpoint.
TEST(OwnLoop, StatesOnDiskGiveTheResultOfLibtorchsOwn) {
  const test::TemporaryFolder folder;
  const auto run_with = [&](const ZeroOptions& zero, bool ours, std::int64_t steps, auto&& name) {
    return [&, zero, ours, steps, name](int) {
      auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
      DataParallel trainer(make_net(), job, {.zero = zero});
      std::unique_ptr<torch::optim::Optimizer> adam;
      if (ours) {
        adam = std::make_unique<AdamW>(trainer.parameters(), 0.02);
      } else {
        adam = std::make_unique<torch::optim::AdamW>(trainer.parameters(), 0.02);
      }
      const auto from = trainer.resume(folder / (name + std::string(".saved")), *adam);
      for (auto& batch :
           job.balanced(std::make_shared<Sequences>(),
                        {.global_batch = 6, .epochs = 2, .from = from, .steps = steps})) {
        trainer.step(*adam, [&](const Batch& piece) {
          EXPECT_EQ(piece.step, batch.step);
          return mean_loss(trainer.forward(piece.x), piece);
        });
      }
      trainer.save(folder / (name + std::string(".saved")), *adam);
      trainer.save_model(folder / name);
      const auto* const placed = dynamic_cast<const optim::KeepsOnDisk*>(adam.get());
      const bool on_disk = placed != nullptr && placed->disk_traffic();
      return on_disk == (zero.offload_optimizer == "disk") ? 0 : 1;
    };
  };
  std::filesystem::create_directory(folder / "states");
  EXPECT_EQ(test::run_forked_ranks(1, run_with({}, false, 0, "one")), std::vector<int>{0});
  for (const int level : {1, 3}) {
    const auto name = "level" + std::to_string(level);
    const ZeroOptions zero{
        .level = level, .offload_optimizer = "disk", .offload_path = folder / "states"};
    for (const std::int64_t steps : {3, 0}) {
      EXPECT_EQ(test::run_forked_ranks(2, run_with(zero, true, steps, name)),
                (std::vector<int>{0, 0}));
    }
    EXPECT_LT(difference(folder / name, folder / "one"), 1e-12) << level;
  }
}

TEST(OwnLoop, OneRankTakesTheStepsOfAPlainLoop) {
  auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
  auto net = make_net(), plain = make_net();
  DataParallel trainer(net, job, at_level(0, 2));
  torch::optim::Adam adam(trainer.parameters(), 0.02), plain_adam(plain->parameters(), 0.02);
  for (auto& batch :
       job.balanced(std::make_shared<Sequences>(), {.global_batch = 6, .epochs = 2})) {
    plain_adam.zero_grad();
    mean_loss(plain->forward(batch.x), batch).backward();
    torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.3);
    plain_adam.step();
    trainer.step(adam, [&](const Batch& piece) {
      EXPECT_LE(piece.x.size(0), 2);
      return mean_loss(net->forward(piece.x), piece);
    });
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::allclose(net->parameters()[i], plain->parameters()[i], 1e-12, 1e-12)) << i;
  }
}

TEST(OwnLoop, GoesOnWithAnotherNumberOfRanksAndAnotherLevel) {
  const test::TemporaryFolder folder;
  run_on({.options = at_level(0)}, folder / "one");
  const auto dir = folder / "checkpoints";
  run_on({.ranks = 2, .options = at_level(3, 2), .weights = {1, 2}, .steps = 3, .dir = dir},
         folder / "part");
  run_on({.options = at_level(0), .steps = 5, .dir = dir}, folder / "part");
  run_on({.ranks = 2, .options = at_level(2), .weights = {5, 2}, .dir = dir}, folder / "whole");
  EXPECT_LT(difference(folder / "whole", folder / "one"), 1e-12);
  run_on({.options = at_level(0), .dir = dir}, folder / "over");  // nothing is left
  EXPECT_EQ(difference(folder / "over", folder / "whole"), 0);
}

TEST(OwnLoop, EpochsAreTheCallers) {
  const auto seen = [](const std::vector<BalancedOptions>& loops) {
    auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
    auto net = make_net();
    DataParallel trainer(net, job);
    torch::optim::SGD sgd(trainer.parameters(), 0.1);
    std::vector<double> first;
    for (const auto& options : loops) {
      for (auto& batch : job.balanced(std::make_shared<Sequences>(), options)) {
        first.push_back(batch.x[0][0][0].item<double>() + 10.0 * static_cast<double>(batch.epoch));
        trainer.step(mean_loss(net->forward(batch.x), batch), sgd);
      }
    }
    return first;
  };
  const auto through = seen({{.global_batch = 6, .epochs = 3}});
  ASSERT_EQ(through.size(), 12);
  EXPECT_EQ(
      seen({{.global_batch = 6, .epoch = 1}, {.global_batch = 6, .epoch = 2}, {.global_batch = 6}}),
      through);
  const StartingPoint from = {.step = 5, .position = {.epoch = 1, .offset = 6}};
  const std::vector<double> rest(through.begin() + 5, through.end());
  EXPECT_EQ(seen({{.global_batch = 6, .epochs = 3, .from = from}}), rest);
  EXPECT_EQ(seen({{.global_batch = 6, .epoch = 1, .from = from},
                  {.global_batch = 6, .epoch = 2, .from = from},
                  {.global_batch = 6, .epoch = 3, .from = from}}),
            rest);
}

TEST(OwnLoop, ComputesInItsPrecision) {
  auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
  auto net = make_net();
  net->to(torch::kFloat32);
  DataParallel trainer(net, job, {.precision = precision::Precision::bfloat16});
  torch::optim::SGD sgd(trainer.parameters(), 0.1);
  for (auto& batch : job.balanced(std::make_shared<Sequences>(), {.global_batch = 6})) {
    trainer.step(sgd, [&](const Batch& piece) {
      const auto logits = trainer.forward(piece.x.to(torch::kFloat32));
      EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
      return mean_loss(logits, piece);
    });
    EXPECT_TRUE(std::isfinite(job.progress().loss)) << batch.step;
  }
  EXPECT_EQ(trainer.parameters()[0].scalar_type(), torch::kFloat32);
}

/// One float32 step is left out by hand, of which a step of float16 overflows on one of two ranks.
TEST(OwnLoop, AStepOfFloat16ThatOverflowsIsSkippedByAllRanks) {
  constexpr std::int64_t kOverflows = 4;
  const test::TemporaryFolder folder;
  const auto run_in = [&](precision::Precision precision, const std::string& name) {
    return [&, precision, name](int rank) {
      const bool half = precision == precision::Precision::float16;
      auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
      auto net = make_net();
      net->to(torch::kFloat32);
      DataParallel trainer(net, job, {.precision = precision});
      torch::optim::SGD sgd(trainer.parameters(), 0.1);
      double scale = 65536;
      for (auto& batch :
           job.balanced(std::make_shared<Sequences>(), {.global_batch = 6, .epochs = 2})) {
        const bool skips = batch.step == kOverflows;
        sgd.param_groups()[0].options().set_lr(skips && !half ? 0 : 0.1);
        const auto before = net->parameters()[0].clone();
        trainer.step(sgd, [&](const Batch& piece) {
          const auto logits = trainer.forward(piece.x.to(torch::kFloat32));
          EXPECT_EQ(logits.scalar_type(), half ? torch::kFloat16 : torch::kFloat32);
          const bool too_much = half && skips && rank == 1;
          return mean_loss(logits, piece) * (too_much ? 1e4 : 1);
        });
        EXPECT_EQ(before.equal(net->parameters()[0]), skips) << batch.step;
        if (skips) scale /= 2;
        EXPECT_EQ(job.progress().loss_scale.value_or(scale), scale) << batch.step;
      }
      trainer.save_model(folder / name);
      return ::testing::Test::HasFailure() ? 1 : 0;
    };
  };
  test::run_forked_ranks(1, run_in(precision::Precision::float32, "wide"));
  EXPECT_EQ(test::run_forked_ranks(2, run_in(precision::Precision::float16, "half")),
            (std::vector<int>{0, 0}));
  EXPECT_LT(difference(folder / "half", folder / "wide"), 2e-3);
}

TEST(OwnLoop, EvaluationGivesModulesTheirModesBack) {
  auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
  auto net = make_net();
  net[2]->eval();
  DataParallel trainer(net, job);
  trainer.evaluate(std::make_shared<Sequences>(), [&](const Batch& batch) {
    EXPECT_FALSE(net[0]->is_training());
    return Values{trainer.forward(batch.x).sum()};
  });
  EXPECT_TRUE(net[0]->is_training());
  EXPECT_FALSE(net[2]->is_training());
}

/// The same as run() by stages.
int run_stages(const PipelineOptions& pipeline, const Plan& plan,
               const std::filesystem::path& output) {
  auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
  Pipeline trainer(units_of(make_net()), job, pipeline);
  torch::optim::Adam adam(trainer.parameters(), 0.02);
  BalancedOptions options = {.global_batch = 6, .epochs = 2, .steps = plan.steps};
  if (!plan.dir.empty()) options.from = trainer.resume(plan.dir, adam);
  const auto data = std::make_shared<Sequences>();
  for (auto& batch : job.balanced(data, options)) {
    trainer.step(adam, [&](const Values& outputs, const Batch& piece) {
      EXPECT_EQ(piece.step, batch.step);
      return mean_loss(outputs[0], piece);
    });
  }
  if (!plan.dir.empty()) trainer.save(plan.dir, adam);
  const auto told = trainer.evaluate(data, [&](const Values& outputs, const Batch& batch) {
    return Values{mean_loss(outputs[0], batch) * (batch.y != kNoTarget).sum()};
  });
  trainer.save_model(output);
  if (job.rank() == 0) std::ofstream(output.string() + ".told") << std::hexfloat << told.loss;
  return ::testing::Test::HasFailure() ? 1 : 0;
}

TEST(OwnLoop, StagesGiveTheResultOfOneDeviceAndGoOnAsAnythingElse) {
  const test::TemporaryFolder folder;
  run_on({.options = at_level(0)}, folder / "one");
  const auto run_on_stages = [&](const PipelineOptions& pipeline, const Plan& plan,
                                 const std::string& name) {
    const auto statuses = test::run_forked_ranks(
        plan.ranks, [&](int) { return run_stages(pipeline, plan, folder / name); });
    ASSERT_EQ(statuses, std::vector<int>(static_cast<std::size_t>(plan.ranks), 0)) << name;
  };
  const auto same = [&](const std::string& name) {
    EXPECT_LT(difference(folder / name, folder / "one"), 1e-12) << name;
    EXPECT_NEAR(told_loss(folder / name), told_loss(folder / "one"), 1e-12) << name;
  };
  const auto stages = [](int number) {
    return PipelineOptions{.stages = number, .limits = {.norm = 0.3}};
  };
  run_on_stages(stages(1), {}, "alone");
  same("alone");
  auto two = stages(2);
  two.cuts = {1};
  two.micro_batches = 3;
  run_on_stages(two, {.ranks = 2}, "two");
  same("two");
  run_on_stages(stages(2), {.ranks = 4}, "replicas");
  same("replicas");
  const auto dir = folder / "checkpoints";
  run_on_stages(stages(2), {.ranks = 2, .steps = 3, .dir = dir}, "part");
  run_on({.ranks = 2, .options = at_level(3), .steps = 5, .dir = dir}, folder / "part");
  run_on_stages(stages(1), {.dir = dir}, "whole");
  same("whole");
}

TEST(OwnLoop, StagesThatCannotBeAreRefused) {
  const auto refused = [](const PipelineOptions& options) {
    try {
      Pipeline(units_of(make_net()), init(0, nullptr, {.worker = "cpu:threads=1"}), options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(refused({.stages = 0}), HasSubstr("at least 1 stage"));
  EXPECT_THAT(refused({.stages = 1, .cuts = {2}}), HasSubstr("PipelineOptions::cuts has 1 units"));
  EXPECT_THAT(refused({.stages = 1, .schedule = "sideways"}), HasSubstr("sideways"));
  EXPECT_THAT(refused({.stages = 1, .loss_scale = 8}),
              HasSubstr("PipelineOptions: loss_scale goes with precision float16"));
  EXPECT_NE(refused({.stages = 2}), "nothing was refused");  // one rank
}

/// The error's text, thrown by the first step at the latest.
std::string refusal(
    const DataParallelOptions& options,
    const std::function<void(DataParallel&, torch::optim::Optimizer&, Batch&)>& body,
    const BalancedOptions& balanced = {.global_batch = 6}) {
  try {
    auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
    DataParallel trainer(make_net(), job, options);
    torch::optim::SGD sgd(trainer.parameters(), 0.1);
    for (auto& batch : job.balanced(std::make_shared<Sequences>(), balanced))
      body(trainer, sgd, batch);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
    return error.what();
  }
  return "nothing was refused";
}

TEST(OwnLoop, RefusesWhatCannotBeRight) {
  const auto with_loss = [](DataParallel& trainer, torch::optim::Optimizer& sgd, Batch& batch) {
    trainer.step(batch.x.sum(), sgd);
  };
  const auto with_function = [](DataParallel& trainer, torch::optim::Optimizer& sgd, Batch&) {
    trainer.step(sgd, [&](const Batch& piece) { return trainer.forward(piece.x); });
  };
  EXPECT_THAT(refusal({}, with_function), HasSubstr("mean loss has to be one number"));
  EXPECT_THAT(refusal({.micro_batch = 2}, with_loss), HasSubstr("give step() a function"));
  EXPECT_THAT(refusal({.precision = precision::Precision::bfloat16}, with_loss),
              HasSubstr("give step() a function"));
  EXPECT_THAT(refusal({.loss_scale = 8}, with_function),
              HasSubstr("loss_scale goes with precision float16"));
  EXPECT_THAT(refusal({.zero = {.level = 4}}, with_function), HasSubstr("ZeroOptions::level is 4"));
  EXPECT_THAT(refusal({.zero = {.level = 1, .shards = {1, 2}}}, with_function),
              HasSubstr("2 weights for 1 ranks"));
  EXPECT_THAT(refusal({.zero = {.level = 1, .offload_parameters = "disk"}}, with_function),
              HasSubstr("level 3 alone"));
  EXPECT_THAT(refusal({.zero = {.offload_optimizer = "host"}}, with_function),
              HasSubstr("it needs level 1, 2 or 3"));
  EXPECT_THAT(refusal({.zero = {.level = 1, .offload_optimizer = "cloud"}}, with_function),
              HasSubstr("take \"none\", \"host\" or \"disk\""));
  EXPECT_THAT(refusal({.zero = {.level = 1, .offload_optimizer = "disk"}}, with_function),
              HasSubstr("offload_path is empty"));
  EXPECT_THAT(refusal({.zero = {.level = 1, .offload_optimizer = "disk", .offload_path = "."}},
                      with_function),
              HasSubstr("take bimetal::Adam or bimetal::AdamW"));
  EXPECT_THAT(refusal({.zero = {.level = 3}}, [](DataParallel& trainer, torch::optim::Optimizer&,
                                                 Batch& batch) { trainer.forward(batch.x); }),
              HasSubstr("belongs into the function"));
  EXPECT_THAT(refusal({.zero = {.level = 2}},
                      [](DataParallel& trainer, torch::optim::Optimizer&, Batch& batch) {
                        torch::optim::LBFGS lbfgs(trainer.parameters());
                        trainer.step(lbfgs, [&](const Batch&) { return batch.x.sum(); });
                      }),
              HasSubstr("element by element"));
  EXPECT_THAT(refusal({}, [](DataParallel& trainer, torch::optim::Optimizer& sgd,
                             Batch&) { trainer.save("nowhere", sgd); }),
              HasSubstr("belongs behind the batch"));
  EXPECT_THAT(refusal({}, with_function, {.global_batch = 6, .from = StartingPoint{.seed = 3}}),
              HasSubstr("go on with seed = 3"));
  EXPECT_THAT(refusal({}, with_function, {.global_batch = 6, .epoch = -1}),
              HasSubstr("epoch counts from 1"));
  const auto of_lstm = [] { DataParallel(torch::nn::LSTM(3, 4), init(), {.zero = {.level = 3}}); };
  EXPECT_THROW(of_lstm(), Error);
}

TEST(OwnLoop, TensorsInMemoryAreADataSet) {
  const auto rows = torch::arange(6).view({3, 2});
  const TensorDataset data({rows, torch::arange(3)}, {1, 5, 2});
  const std::vector<std::int64_t> samples = {2, 0};
  EXPECT_TRUE(data.batch(samples)[0].equal(torch::tensor({{4, 5}, {0, 1}})));
  EXPECT_EQ(data.weight(1), 5);
  EXPECT_THROW(TensorDataset({}), Error);
  EXPECT_THROW(TensorDataset({rows, torch::arange(4)}), Error);
  EXPECT_THROW(TensorDataset({rows}, {1, 2}), Error);
  EXPECT_THROW(TensorDataset({rows}, {1, 2, 0}), Error);
}

TEST(OwnLoop, RanksOfOneMachineTakeTheirWorkersFromOneVariable) {
  setenv("BIMETAL_WORKER", "cpu:threads=2; cpu:threads=1", 1);
  const auto statuses = test::run_forked_ranks(2, [](int rank) {
    const auto job = init();
    return torch::get_num_threads() == (rank == 0 ? 2 : 1) && job.world_size() == 2 ? 0 : 1;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  EXPECT_THROW(init(), Error);
  EXPECT_NO_THROW(init(0, nullptr, {.worker = "cpu:threads=1"}));
  unsetenv("BIMETAL_WORKER");
}

}  // namespace
}  // namespace bimetal
