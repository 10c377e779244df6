// Own loops in which each rank has a part of every tensor, of the layers, of the optimizer's state,
// or all of that: by the public headers, the same as on one device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>

#include <fstream>
#include <string>
#include <vector>

#include "bimetal/bimetal.h"
#include "bimetal/checkpoint/safetensors.h"
#include "support/temporary_folder.h"
#include "unit/api/forked_ranks.h"
#include "unit/train/training_job.h"

namespace bimetal::in_parts {
namespace {

using ::testing::HasSubstr;
namespace nn = torch::nn;

constexpr std::int64_t kSamples = 22, kLength = 4, kWidth = 6, kClasses = 7;

std::shared_ptr<TensorDataset> make_data() {
  const auto x = torch::arange(kSamples * kLength * 3, torch::kFloat64).mul(0.37).sin();
  const auto y = torch::arange(kSamples * kLength).remainder(kClasses);
  return std::make_shared<TensorDataset>(
      Values{x.view({kSamples, kLength, 3}), y.view({kSamples, kLength})});
}

/// The positions of a whole sequence that are here.
struct First : nn::Module {
  First() : layer(register_module("layer", nn::Linear(3, kWidth))) {}
  torch::Tensor forward(torch::Tensor x) {
    if (const auto here = positions_here()) x = x.narrow(1, here->first, here->count);
    return layer(x);
  }
  nn::Linear layer;
};

struct Block : nn::Module {
  Block()
      : norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        up(register_module("up", nn::Linear(kWidth, 12))),
        down(register_module("down", nn::Linear(12, kWidth))) {}
  torch::Tensor forward(torch::Tensor x) {
    const auto inner = torch::gelu(up(shared_by_tensor_ranks(norm(x))));
    return x + sum_over_tensor_ranks(torch::linear(inner, down->weight)) + down->bias;
  }
  nn::LayerNorm norm;
  nn::Linear up, down;
};

struct Head : nn::Module {
  Head() : layer(register_module("layer", nn::Linear(kWidth, kClasses))) {}
  torch::Tensor forward(torch::Tensor x) { return layer(shared_by_tensor_ranks(x)); }
  nn::Linear layer;
};

template <typename Layer>
Unit unit_of(const std::string& name, std::vector<TensorSplit> splits = {}) {
  const auto module = std::make_shared<Layer>();
  auto unit = make_unit(name, module, [module](torch::Tensor x) { return module->forward(x); });
  unit.splits = std::move(splits);
  return unit;
}

Unit block(const std::string& name) {
  return unit_of<Block>(
      name, {{name + ".up.weight", 0}, {name + ".up.bias", 0}, {name + ".down.weight", 1}});
}

Model make_model() {
  torch::manual_seed(5);
  Model model{{unit_of<First>("first"), block("a"), block("b"),
               unit_of<Head>("head", {{"head.layer.weight", 0}, {"head.layer.bias", 0}})}};
  model.to(torch::kCPU, torch::kFloat64);
  return model;
}

torch::Tensor loss_sum(const Values& outputs, const Batch& batch) {
  return cross_entropy_sum(outputs[0].flatten(0, 1), batch.y.flatten(), kClasses, -100);
}

torch::Tensor mean_loss(const Values& outputs, const Batch& piece) {
  return loss_sum(outputs, piece) / static_cast<double>(kLength) /
         static_cast<double>(piece.x.size(0));
}

struct Plan {
  int ranks = 1;
  std::int64_t steps = 7;  ///< two epochs have eight
  std::filesystem::path dir = {};
};

template <typename Trainer, typename Step, typename Evaluate>
void train(const Job& job, Trainer& trainer, const Plan& plan, const std::filesystem::path& output,
           const Step& step, const Evaluate& evaluate) {
  torch::optim::Adam adam(trainer.parameters(), 0.02);
  BalancedOptions options = {.global_batch = 6, .epochs = 2, .steps = plan.steps};
  if (!plan.dir.empty()) options.from = trainer.resume(plan.dir, adam);
  const auto data = make_data();
  for ([[maybe_unused]] auto& batch : job.balanced(data, options)) step(adam);
  if (!plan.dir.empty()) trainer.save(plan.dir, adam);
  const progress::Evaluation told = evaluate(data);
  trainer.save_model(output);
  if (job.rank() == 0) std::ofstream(output.string() + ".told") << std::hexfloat << told.loss;
}

/// `speed`: of rank 0 on, so that workers are unequal.
Job start(int rank) {
  return init(0, nullptr, {.worker = rank == 0 ? "cpu:threads=1" : "cpu:threads=1,speed=0.5"});
}

void whole(const Plan& plan, const std::filesystem::path& output) {
  const auto statuses = test::run_forked_ranks(plan.ranks, [&](int rank) {
    auto job = start(rank);
    DataParallel trainer(make_model(), job, {.limits = {.norm = 0.3}});
    train(
        job, trainer, plan, output,
        [&](auto& adam) {
          trainer.step(adam, [&](const Batch& piece) {
            return mean_loss(trainer.forward(Values{piece.x}), piece);
          });
        },
        [&](const auto& data) {
          return trainer.evaluate(data, [&](const Batch& batch) {
            return Values{loss_sum(trainer.forward(Values{batch.x}), batch)};
          });
        });
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  ASSERT_EQ(statuses, std::vector<int>(static_cast<std::size_t>(plan.ranks), 0));
}

void parted(PipelineOptions options, const Plan& plan, const std::filesystem::path& output) {
  options.limits.norm = 0.3;
  const auto statuses = test::run_forked_ranks(plan.ranks, [&](int rank) {
    auto job = start(rank);
    Pipeline trainer(make_model(), job, options);
    train(
        job, trainer, plan, output, [&](auto& adam) { trainer.step(adam, mean_loss); },
        [&](const auto& data) {
          return trainer.evaluate(data, [&](const Values& outputs, const Batch& batch) {
            return Values{loss_sum(outputs, batch)};
          });
        });
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  ASSERT_EQ(statuses, std::vector<int>(static_cast<std::size_t>(plan.ranks), 0)) << output;
}

class Parts : public ::testing::Test {
 protected:
  void SetUp() override { whole({}, folder / "one"); }

  double told(const std::string& name) {
    std::ifstream file((folder / name).string() + ".told");
    std::string text;
    file >> text;
    return std::stod(text);
  }
  void expect_same(const std::string& name) {
    EXPECT_LT(train::test::relative_difference(checkpoint::read_safetensors(folder / name),
                                               checkpoint::read_safetensors(folder / "one")),
              1e-12)
        << name;
    EXPECT_NEAR(told(name), told("one"), 1e-12) << name;
  }
  void expect_same_in_parts(const PipelineOptions& options, int ranks, const std::string& name) {
    parted(options, {.ranks = ranks}, folder / name);
    expect_same(name);
  }

  const test::TemporaryFolder folder;
};

TEST_F(Parts, OfTensorsGiveTheResultOfOneDevice) {
  expect_same_in_parts({.stages = 1}, 1, "alone");
  expect_same_in_parts({.stages = 1, .tensor = 2, .tensor_weights = {3, 1}}, 2, "tensor");
  expect_same_in_parts({.stages = 1, .micro_batches = 2, .tensor = 2}, 4, "replicas");
  expect_same_in_parts({.stages = 2, .tensor = 2, .tensor_weights = {1, 2}}, 4, "stages");
  expect_same_in_parts(
      {.stages = 1, .tensor = 2, .tensor_weights = {3, 1}, .sequence_parallel = true}, 2,
      "sequence");
  expect_same_in_parts({.stages = 1, .tensor = 2, .recompute = "all"}, 2, "recomputed");
}

TEST_F(Parts, OfStagesInShardsGiveTheResultOfOneDevice) {
  for (const int level : {1, 2, 3}) {
    const auto name = std::to_string(level);
    expect_same_in_parts({.stages = 2, .zero = {.level = level, .shards = {3, 1}}}, 4,
                         "stages" + name);
    expect_same_in_parts({.stages = 1, .zero = {.level = level}}, 2, "shards" + name);
    expect_same_in_parts({.stages = 1, .tensor = 2, .zero = {.level = level, .shards = {1, 2}}}, 4,
                         "tensor" + name);
  }
  expect_same_in_parts({.stages = 2, .micro_batches = 3, .zero = {.level = 3}}, 2, "two");
  std::filesystem::create_directory(folder / "disk");
  const ZeroOptions on_disk{
      .level = 3, .offload_parameters = "disk", .offload_path = folder / "disk"};
  expect_same_in_parts({.stages = 2, .zero = on_disk}, 4, "offloaded");
}

/// From parts of tensors to stages in shards, to one rank.
TEST_F(Parts, GoOnAsAnythingElse) {
  const auto dir = folder / "checkpoints";
  parted({.stages = 1, .tensor = 2, .tensor_weights = {3, 1}}, {.ranks = 2, .steps = 2, .dir = dir},
         folder / "part");
  parted({.stages = 2, .zero = {.level = 3}}, {.ranks = 4, .steps = 4, .dir = dir},
         folder / "part");
  parted({.stages = 1, .tensor = 2, .zero = {.level = 2}}, {.ranks = 4, .steps = 6, .dir = dir},
         folder / "part");
  whole({.dir = dir}, folder / "whole");
  expect_same("whole");
}

/// A rank keeps its own part of the model, and no more.
TEST(PartsOfAModel, LeaveARankItsPartAlone) {
  const auto statuses = test::run_forked_ranks(4, [](int rank) {
    auto job = init(0, nullptr, {.worker = "cpu:threads=1"});
    const auto model = make_model();
    Pipeline trainer(model, job, {.stages = 2, .cuts = {2}, .tensor = 2, .tensor_weights = {3, 1}});
    const auto size = [&](std::size_t unit, std::size_t parameter) {
      return model.units[unit].parameters[parameter].tensor.size(0);
    };
    EXPECT_EQ(size(rank < 2 ? 1 : 2, 2), rank % 2 == 0 ? 9 : 3) << rank;  // of "up"'s 12 columns
    std::size_t kept = 0;
    for (const auto& named : model.named_parameters()) {
      auto* const storage = named.tensor.storage().unsafeGetStorageImpl();
      if (storage->_mutable_data_ptr_no_checks().get() != nullptr) ++kept;
    }
    EXPECT_EQ(kept, trainer.parameters().size());
    const auto again = [&] { Pipeline(model, job, {.stages = 2, .cuts = {2}, .tensor = 2}); };
    EXPECT_THROW(again(), Error);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 0}));
}

TEST(PartsOfAModel, ThatCannotBeAreRefused) {
  const auto refused = [](const PipelineOptions& options, const Model& model = make_model()) {
    try {
      Pipeline(model, init(0, nullptr, {.worker = "cpu:threads=1"}), options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(refused({.stages = 1, .tensor = 0}), HasSubstr("tensor = 0"));
  EXPECT_THAT(refused({.stages = 1, .tensor = 2}), HasSubstr("PipelineOptions::tensor = 2"));
  EXPECT_THAT(refused({.stages = 1, .sequence_parallel = true}),
              HasSubstr("PipelineOptions::sequence_parallel needs PipelineOptions::tensor"));
  EXPECT_THAT(refused({.stages = 1, .tensor = 2, .sequence_parallel = true, .zero = {.level = 1}}),
              HasSubstr("does not go with PipelineOptions::zero.level"));
  EXPECT_THAT(refused({.stages = 1, .zero = {.level = 4}}), HasSubstr("ZeroOptions::level is 4"));
  EXPECT_THAT(refused({.stages = 1, .zero = {.level = 1, .shards = {1, 2}}}),
              HasSubstr("2 weights for 1 replicas of a mesh"));
  const auto statuses = test::run_forked_ranks(2, [&](int) {
    auto without = make_model();
    for (auto& unit : without.units) unit.splits.clear();
    EXPECT_THAT(refused({.stages = 1, .tensor = 2}, without), HasSubstr("Unit::splits"));
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

}  // namespace
}  // namespace bimetal::in_parts
