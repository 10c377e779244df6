#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/parallel/tensor/tensor_model.h"
#include "support/errors.h"

namespace bimetal::parallel::tensor {
namespace {

using ::testing::HasSubstr;

task::Model model_of(std::vector<std::int64_t> sizes, task::TensorSplit split) {
  auto weight = torch::arange(12 * 4, torch::kFloat64).view(sizes).set_requires_grad(true);
  task::Unit unit;
  unit.name = "block";
  unit.parameters = {{"w", weight}};
  unit.splits = {std::move(split)};
  return {{unit}};
}

std::string refusal(const task::Model& model, std::vector<double> weights,
                    ErrorCode code = ErrorCode::InvalidArgument) {
  return text_of(code, [&] { const Cuts cuts(model, std::move(weights)); });
}

// If q, k and v are one tensor, each rank gets its heads of all three.
TEST(Cuts, SegmentsAreCutAlike) {
  const auto model = model_of({4, 12}, {"w", 1, 2, 3});
  const Cuts cuts(model, {1, 1});
  const auto whole = model.units[0].parameters[0].tensor.detach();
  const auto columns = torch::tensor({2, 3, 6, 7, 10, 11});
  EXPECT_TRUE(cuts.part("w", whole, 1).equal(whole.index_select(1, columns)));
}

TEST(Cuts, PartsMakeTheWholeWhereTheyLie) {
  const auto model = model_of({4, 12}, {"w", 1, 1, 3});
  const Cuts cuts(model, {1, 2, 1});
  const auto whole = model.units[0].parameters[0].tensor.detach();
  EXPECT_EQ(cuts.sizes("w"), whole.sizes().vec());
  auto again = torch::zeros_like(whole), put = torch::zeros_like(whole);
  for (int rank = 0; rank < 3; ++rank) {
    const auto part = cuts.part("w", whole, rank);
    EXPECT_EQ(part.sizes().vec(), cuts.part_sizes("w", rank));
    const auto [dim, places] = cuts.places("w", rank);
    cuts.put("w", part, rank, put);
    ASSERT_EQ(places.size(), 3U);
    std::int64_t here = 0;
    for (const auto& [first, count] : places) {
      again.narrow(dim, first, count).add_(part.narrow(dim, here, count));
      here += count;
    }
  }
  EXPECT_TRUE(again.equal(whole));
  EXPECT_TRUE(put.equal(whole));
}

TEST(Cuts, OtherTensorsStayWhole) {
  const Cuts cuts(model_of({12, 4}, {"w", 0}), {1, 1});
  const auto other = torch::ones({3});
  EXPECT_TRUE(cuts.part("b", other, 1).is_same(other));
  EXPECT_FALSE(cuts.has("b"));
}

TEST(Cuts, WhatCannotBeCutIsRefusedWithWhatCould) {
  EXPECT_THAT(refusal(model_of({12, 4}, {"w", 0, 6}), {1, 1, 1}), HasSubstr("mesh.tensor = 2"));
  EXPECT_THAT(refusal(model_of({12, 4}, {"w", 0, 5}), {1, 1}), HasSubstr("does not fit"));
  EXPECT_THAT(refusal(model_of({12, 4}, {"w", 2}), {1, 1}), HasSubstr("does not fit"));
  EXPECT_THAT(refusal(model_of({12, 4}, {"v", 0}), {1, 1}), HasSubstr("'v'"));
  EXPECT_THAT(refusal(model_of({12, 4}, {"w", 0}), {1, 0}), HasSubstr("greater than 0"));
  auto silent = model_of({12, 4}, {"w", 0});
  silent.units[0].splits.clear();
  EXPECT_THAT(refusal(silent, {1, 1}, ErrorCode::Unsupported), HasSubstr("take mesh.tensor = 1"));
}

}  // namespace
}  // namespace bimetal::parallel::tensor
