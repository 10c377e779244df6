#include "bimetal/task/unit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>

#include "bimetal/task/model_state.h"

namespace bimetal::task {
namespace {

using ::testing::ElementsAre;

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

TEST(Model, RunsItsUnitsInOrder) {
  Small small;
  const auto ids = torch::tensor({0, 3, 4});
  std::vector<std::size_t> used;
  const auto outputs =
      run_units(small.model, {ids}, [&](std::size_t unit) { used.push_back(unit); });
  EXPECT_THAT(used, ElementsAre(0, 1, 2));
  const auto expected = torch::linear(small.norm(small.embedding(ids)), small.embedding->weight);
  EXPECT_TRUE(outputs.at(0).allclose(expected));
}

TEST(Model, ListsATensorOfSeveralUnitsOnce) {
  const Small small;
  EXPECT_THAT(names_of(small.model.named_parameters()),
              ElementsAre("embedding.weight", "norm.weight", "norm.bias"));
  EXPECT_THAT(names_of(small.model.named_buffers()),
              ElementsAre("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
  EXPECT_THAT(small.model.tied(), ElementsAre(ElementsAre("embedding.weight", "head.weight")));
  EXPECT_THAT(ModelState(small.model).other_names, ElementsAre("head.weight"));
}

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

}  // namespace
}  // namespace bimetal::task
