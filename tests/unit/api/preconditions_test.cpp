// A forbidden call of an own program is an error that says what to do, in the first step.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/bimetal.h"
#include "support/temporary_folder.h"
#include "unit/api/forked_ranks.h"

namespace bimetal {
namespace {

using ::testing::HasSubstr;

struct Rows : Dataset {
  explicit Rows(std::int64_t n, std::int64_t surplus = 0) : rows(n), more(surplus) {}
  std::int64_t size() const override { return rows; }
  Values batch(std::span<const std::int64_t> samples) const override {
    const auto number = torch::tensor(torch::ArrayRef<std::int64_t>(samples)).to(torch::kFloat64);
    const auto x = number.unsqueeze(1) / 10;
    return {x, more > 0 ? torch::zeros({std::ssize(samples) + more}) : x.sin()};
  }
  std::int64_t rows, more;
};

struct Line : Task {
  explicit Line(std::function<Model()> m) : make(std::move(m)) {}
  Model make_model() const override { return make(); }
  std::shared_ptr<const Dataset> training() const override { return std::make_shared<Rows>(8); }
  torch::Tensor loss_sum(const Values& outputs, const Values& batch) const override {
    return (outputs[0] - batch[1].to(outputs[0].dtype())).square().sum();
  }
  std::function<Model()> make;
};

Unit unit_of(const std::string& name, torch::nn::AnyModule module) {
  return task::make_unit(name, module.ptr(), [module](torch::Tensor x) mutable {
    return module.forward(x.to(torch::kFloat32));
  });
}

Model line() {
  return {{unit_of("line", torch::nn::AnyModule(torch::nn::Linear(1, 1)))}};
}

std::string refusal(const std::function<void()>& action, ErrorCode code) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing was refused";
}

std::string refusal(const std::function<void()>& action) {
  return refusal(action, ErrorCode::InvalidArgument);
}

torch::nn::Sequential module_of(const torch::nn::AnyModule& middle) {
  torch::nn::Sequential module(torch::nn::Linear(1, 4));
  module->push_back(middle);
  module->push_back(torch::nn::Linear(4, 1));
  module->to(torch::kFloat64);
  return module;
}

/// One loop over a module's batches of 4 of 8, whose body is `body`.
using Body = std::function<void(DataParallel&, torch::optim::Optimizer&, const torch::Tensor&)>;
void train(torch::nn::Sequential module, const Body& body, Job job = init()) {
  DataParallel trainer(module, job);
  torch::optim::SGD sgd(module->parameters(), 0.1);
  for (auto& batch : job.balanced(std::make_shared<Rows>(8), {.global_batch = 4})) {
    const auto loss = (module->forward(batch.x) - batch.y).square().mean();
    body(trainer, sgd, loss);
  }
}

void step(DataParallel& trainer, torch::optim::Optimizer& optimizer, const torch::Tensor& loss) {
  trainer.step(loss, optimizer);
}

torch::nn::AnyModule tanh_layer() {
  return torch::nn::AnyModule(torch::nn::Tanh());
}

TEST(Preconditions, TwoUnitsOfOneNameAreRefused) {
  const auto twice = [] {
    return Model{{unit_of("line", torch::nn::AnyModule(torch::nn::Linear(1, 1))),
                  unit_of("line", torch::nn::AnyModule(torch::nn::Linear(1, 1)))}};
  };
  const test::TemporaryFolder folder;
  const auto file = folder / "model.safetensors";
  EXPECT_THAT(refusal([&] { save(task::ModelState(twice()), file); }), HasSubstr("'line.weight'"));
  save(task::ModelState(line()), file);
  EXPECT_THAT(refusal([&] { load(task::ModelState(twice()), file); }), HasSubstr("'line.weight'"));
  EXPECT_THAT(refusal([&] { DataParallel(std::make_shared<Line>(twice), init()); }),
              HasSubstr("'line.weight'"));
}

TEST(Preconditions, ATasksModelInFloat64IsRefused) {
  const auto wide = [] {
    torch::nn::Linear layer(1, 1);
    layer->to(torch::kFloat64);
    return Model{{unit_of("line", torch::nn::AnyModule(layer))}};
  };
  EXPECT_THAT(refusal([&] { DataParallel(std::make_shared<Line>(wide), init()); }),
              HasSubstr("'line.weight' of the task's model is float64"));
}

TEST(Preconditions, LayersThatDependOnTheSplitAreRefused) {
  const std::vector<torch::nn::AnyModule> layers = {
      torch::nn::AnyModule(torch::nn::BatchNorm1d(4)), torch::nn::AnyModule(torch::nn::Dropout()),
      torch::nn::AnyModule(torch::nn::AlphaDropout())};
  for (const auto& layer : layers) {
    const auto with = [&] { return Model{{unit_of("layer", layer)}}; };
    EXPECT_THAT(refusal([&] { DataParallel(std::make_shared<Line>(with), init()); }),
                HasSubstr("layer "));
    EXPECT_THAT(refusal([&] { train(module_of(layer), step); }), HasSubstr("1 "));
    auto frozen = module_of(layer);
    frozen[1]->eval();
    EXPECT_NO_THROW(train(frozen, step));
  }
  const torch::nn::AnyModule nothing(torch::nn::Dropout(0.0));
  EXPECT_NO_THROW(train(module_of(nothing), step));
}

TEST(Preconditions, GroupedBatchNormOfAModuleMovesItsStatistics) {
  task::GroupedBatchNorm norm(4, 2);
  auto module = module_of(torch::nn::AnyModule(norm));
  EXPECT_THAT(refusal([&] { train(module, step); }), HasSubstr("sample_group to 2"));
  auto job = init();
  DataParallel trainer(module, job);
  torch::optim::SGD sgd(module->parameters(), 0.1);
  const BalancedOptions in_pairs = {.global_batch = 4, .sample_group = 2};
  for (auto& batch : job.balanced(std::make_shared<Rows>(8), in_pairs)) {
    trainer.step((module->forward(batch.x) - batch.y).square().mean(), sgd);
  }
  EXPECT_GT(norm->statistics().mean.abs().sum().item<double>(), 0);
}

TEST(Preconditions, AnOptimizerOverOtherTensorsIsRefused) {
  auto other = module_of(tanh_layer());
  torch::optim::SGD of_other(other->parameters(), 0.1);
  torch::optim::SGD of_nothing(std::vector<torch::Tensor>(), 0.1);
  const auto with = [&](torch::optim::Optimizer& optimizer) {
    return refusal([&] {
      train(module_of(tanh_layer()),
            [&](auto& trainer, auto&, const auto& loss) { trainer.step(loss, optimizer); });
    });
  };
  EXPECT_THAT(with(of_other), HasSubstr("shape [4, 1] that is not the model's"));
  EXPECT_THAT(with(of_nothing), HasSubstr("none of the model's trained tensors"));
}

TEST(Preconditions, WhatIsTrainedStaysSo) {
  const auto after = [](bool frozen_before) {
    auto module = module_of(tanh_layer());
    module[2]->parameters()[0].set_requires_grad(!frozen_before);
    return refusal([&] {
      train(module, [&](auto& trainer, auto& sgd, const torch::Tensor& loss) {
        trainer.step(loss, sgd);
        module[2]->parameters()[0].set_requires_grad(frozen_before);
      });
    });
  };
  EXPECT_THAT(after(false), HasSubstr("'2.weight' was frozen"));
  EXPECT_THAT(after(true), HasSubstr("'2.weight' was set to be trained"));
}

TEST(Preconditions, AProgramsOwnBackwardIsNotLost) {
  const auto first = [](auto& trainer, auto& sgd, const torch::Tensor& loss) {
    (loss * 3).backward({}, /*retain_graph=*/true);
    trainer.step(loss, sgd);
  };
  EXPECT_THAT(refusal([&] { train(module_of(tanh_layer()), first); }), HasSubstr("'0.weight'"));
  int steps = 0;
  const auto second = [&](auto& trainer, auto& sgd, const torch::Tensor& loss) {
    if (steps++ == 1) (loss * 3).backward({}, /*retain_graph=*/true);
    trainer.step(loss, sgd);
  };
  EXPECT_THAT(refusal([&] { train(module_of(tanh_layer()), second); }), HasSubstr("'0.weight'"));
  for (const bool to_none : {true, false}) {
    EXPECT_NO_THROW(train(module_of(tanh_layer()), [&](auto& trainer, auto& sgd, const auto& loss) {
      sgd.zero_grad(to_none);
      trainer.step(loss, sgd);
    }));
  }
}

TEST(Preconditions, ABatchOfAnotherLengthIsRefusedInTheDataSetsWords) {
  auto job = init();
  const auto loop = [&] {
    for (auto& batch : job.balanced(std::make_shared<Rows>(8, 2), {.global_batch = 4})) {
      ASSERT_GT(batch.step, 0);
    }
  };
  EXPECT_THAT(refusal(loop), HasSubstr("asked for 4 samples, and its tensor 1 is of shape [6]"));
}

TEST(Preconditions, EpochsOfSeveralLoopsDiffer) {
  const auto order_of = [](int loops, std::int64_t epochs) {
    auto job = init();
    auto module = module_of(tanh_layer());
    DataParallel trainer(module, job);
    torch::optim::SGD sgd(module->parameters(), 0.1);
    std::vector<std::vector<double>> seen(static_cast<std::size_t>(loops * epochs));
    for (int loop = 0; loop < loops; ++loop) {
      const BalancedOptions options = {.global_batch = 4, .epochs = epochs};
      for (auto& batch : job.balanced(std::make_shared<Rows>(8), options)) {
        for (int i = 0; i < batch.x.size(0); ++i) {
          seen[static_cast<std::size_t>(batch.epoch - 1)].push_back(batch.x[i].item<double>());
        }
        trainer.step((module->forward(batch.x) - batch.y).square().mean(), sgd);
      }
    }
    return seen;
  };
  const auto in_loops = order_of(3, 1);
  EXPECT_EQ(in_loops, order_of(1, 3));
  EXPECT_NE(in_loops[0], in_loops[1]);
}

TEST(Preconditions, RanksThatWantUnlikeThingsAreToldWhat) {
  struct Unlike {
    std::string named;
    BalancedOptions options = {.global_batch = 4};
    std::int64_t size = 8;
    std::optional<DataParallelOptions> compute = {};
  };
  const std::vector<Unlike> cases = {
      {"global_batch = 2", {.global_batch = 2}},
      {"epochs = 2", {.global_batch = 4, .epochs = 2}},
      {"seed = 7", {.global_batch = 4, .seed = 7}},
      {"weights = [1, 3]",
       {.global_batch = 4, .balance = balance::Policy::Auto, .weights = {1, 3}}},
      {"9 samples", {.global_batch = 4}, 9},
      {"precision = bfloat16",
       {.global_batch = 4},
       8,
       DataParallelOptions{.precision = precision::Precision::bfloat16}},
      {"limits.norm = 1", {.global_batch = 4}, 8, DataParallelOptions{.limits = {.norm = 1}}},
      {"seed = 3", {.global_batch = 4}, 8, DataParallelOptions{.seed = 3}}};
  for (const auto& unlike : cases) {
    const auto statuses = test::run_forked_ranks(2, [&](int rank) {
      const char* arguments[] = {"program", "--worker=cpu:threads=1"};
      auto job = init(2, arguments);
      const auto told = refusal(
          [&] {
            const auto compute =
                rank == 1 && unlike.compute ? *unlike.compute : DataParallelOptions();
            DataParallel trainer(std::make_shared<Line>(line), job, compute);
            job.balanced(std::make_shared<Rows>(rank == 1 ? unlike.size : 8),
                         rank == 1 ? unlike.options : BalancedOptions{.global_batch = 4});
          },
          ErrorCode::CallMismatch);
      const bool named = told.find(unlike.named) != std::string::npos &&
                         told.find("rank 1 has") != std::string::npos;
      return named ? 0 : 1;
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 0})) << unlike.named;
  }
}

}  // namespace
}  // namespace bimetal
