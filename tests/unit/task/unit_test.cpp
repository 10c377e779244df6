#include "bimetal/task/unit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/task/task.h"

namespace bimetal::task {
namespace {

using ::testing::ElementsAre;

TEST(Values, ImagesAreTheSameWithTheirChannelsLast) {
  const auto images = torch::arange(2 * 3 * 4 * 5, torch::kFloat32).view({2, 3, 4, 5});
  const auto labels = torch::arange(2), whole = labels.view({2, 1, 1, 1});
  const auto values = in_channels_last({images, labels, whole});
  EXPECT_TRUE(values[0].equal(images));
  EXPECT_EQ(values[0].stride(1), 1);
  EXPECT_TRUE(values[1].is_same(labels));
  EXPECT_TRUE(values[2].is_same(whole)) << "whole numbers are no images";
}

std::vector<std::string> names_of(const std::vector<NamedTensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& named : tensors) names.push_back(named.name);
  return names;
}

/// An embedding, a normalisation with buffers, and a head that is tied to the embedding.
struct Small {
  Small() {
    const auto table = embedding->weight;
    model.units = {
        make_unit("embedding", embedding.ptr(),
                  [m = embedding.ptr()](const torch::Tensor& ids) { return m->forward(ids); }),
        make_unit("norm", norm.ptr(),
                  [m = norm.ptr()](const torch::Tensor& x) { return m->forward(x); }),
        {.name = "head",
         .parameters = {{"head.weight", table}},
         .forward = [table](const Values& inputs) -> Values {
           return {torch::linear(inputs.front(), table)};
         }}};
  }

  torch::nn::Embedding embedding{5, 4};
  torch::nn::BatchNorm1d norm{4};
  Model model;
};

TEST(Model, ATensorMayHaveTheSameNameInAllOfItsUnits) {
  Small small;
  small.model.units.back().parameters.front().name = "embedding.weight";
  EXPECT_THAT(small.model.tied(), ElementsAre());
  EXPECT_THAT(ModelState(small.model).other_names, ElementsAre());
}

TEST(Model, MovesWithItsTiesAndLeavesWholeNumbersAlone) {
  const Small small;
  const auto table = small.embedding->weight;
  small.model.to(torch::kCPU, torch::kFloat64);
  EXPECT_EQ(table.scalar_type(), torch::kFloat64);
  EXPECT_TRUE(table.is_leaf() && table.requires_grad());
  EXPECT_TRUE(small.model.units[2].parameters[0].tensor.is_same(table));
  EXPECT_EQ(small.norm->running_mean.scalar_type(), torch::kFloat64);
  EXPECT_EQ(small.norm->num_batches_tracked.scalar_type(), torch::kInt64);
  run_units(small.model, {torch::tensor({1, 2})}).at(0).sum().backward();
  EXPECT_TRUE(table.grad().defined());
}

TEST(Model, TrainAndEvalReachItsModules) {
  const Small small;
  small.model.eval();
  EXPECT_FALSE(small.norm->is_training());
  EXPECT_FALSE(small.embedding->is_training());
  small.model.train();
  EXPECT_TRUE(small.norm->is_training());
}

TEST(ModelState, OfAModuleHasItsNamesInItsOrder) {
  torch::nn::Sequential module(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  const ModelState state(*module);
  EXPECT_THAT(names_of(state.parameters), ElementsAre("0.weight", "0.bias", "1.weight", "1.bias"));
  EXPECT_THAT(names_of(state.buffers),
              ElementsAre("1.running_mean", "1.running_var", "1.num_batches_tracked"));
  EXPECT_THAT(state.other_names, ElementsAre());
}

TEST(Unit, WithoutANameHasItsModulesNames) {
  const auto linear = torch::nn::Linear(2, 3);
  const auto unit = make_unit("", linear.ptr(),
                              [m = linear.ptr()](const torch::Tensor& x) { return m->forward(x); });
  EXPECT_EQ(unit.name, "model");
  EXPECT_THAT(names_of(unit.parameters), ElementsAre("weight", "bias"));
}

/// Sample i is i, and weighs `weight` of it.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t heavier) : heavier_(heavier) {}
  std::int64_t size() const override { return 4; }
  std::int64_t weight(std::int64_t sample) const override { return 1 + heavier_ * sample; }
  Values batch(std::span<const std::int64_t> samples) const override {
    const auto numbers = torch::tensor(c10::ArrayRef<std::int64_t>(samples.data(), samples.size()));
    return {numbers, numbers + 10, numbers + 20};
  }

 private:
  std::int64_t heavier_;
};

class Sums : public Task {
 public:
  Model make_model() const override { return {}; }
  std::shared_ptr<const Dataset> training() const override { return nullptr; }
  torch::Tensor loss_sum(const Values& outputs, const Values&) const override {
    return outputs.front().sum();
  }
};

TEST(Dataset, WeightsAreListedUnlessAllAreOne) {
  EXPECT_THAT(weights_of(Numbers(0)), ElementsAre());
  EXPECT_THAT(weights_of(Numbers(2)), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(weight_of(Numbers(2), 1, 3), 8);
  EXPECT_EQ(weight_of(Numbers(2), 3, 3), 0);
}

TEST(Dataset, BatchesAreCutAlongTheirSamples) {
  const auto batch = batch_of(Numbers(0), 1, 4);
  EXPECT_EQ(samples_of(batch), 3);
  const auto piece = slice(batch, 1, 3);
  EXPECT_TRUE(piece[1].equal(torch::tensor({12, 13}, torch::kInt64)));
  EXPECT_EQ(samples_of({}), 0);
}

TEST(Task, GivesItsModelAllButTheTargets) {
  const auto batch = batch_of(Numbers(0), 0, 2);
  const auto inputs = Sums().inputs(batch);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_TRUE(inputs[1].is_same(batch[1]));
  EXPECT_TRUE(Sums().inputs({}).empty());
}

}  // namespace
}  // namespace bimetal::task
