#include "bimetal/parallel/pipeline/stage_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/error.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/parallel/pipeline/stage_seconds.h"
#include "support/errors.h"

namespace bimetal::parallel::pipeline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Five units of one parameter each; the last one's is the first one's, too.
task::Model model() {
  task::Model made;
  for (int i = 0; i < 5; ++i) {
    const auto tensor =
        i == 4 ? made.units[0].parameters[0].tensor : torch::zeros({2}, torch::requires_grad());
    const auto name = "u" + std::to_string(i);
    made.units.push_back({.name = name, .parameters = {{name + ".w", tensor}}, .forward = {}});
  }
  return made;
}

std::string refusal(const std::vector<std::int64_t>& cuts, std::size_t pieces) {
  return text_of(ErrorCode::InvalidArgument, [&] { begins_of(cuts, pieces, 5); });
}

TEST(StageModel, CutsAreUnitsOfTheModel) {
  EXPECT_THAT(begins_of({2, 3}, 3, 5), ElementsAre(0, 2, 3));
  EXPECT_THAT(refusal({2}, 3), HasSubstr("give the 2 units"));
  EXPECT_THAT(refusal({5}, 2), HasSubstr("are 1 to 4"));
  EXPECT_THAT(refusal({1, 2, 3, 4, 5}, 6), HasSubstr("at most 5"));
}

TEST(StageModel, TiedTensorsAreKnownToAllStagesUnderOneName) {
  const auto whole = model();
  const auto first = make_stage(whole, {0, 1, 3}, 3, 0),
             middle = make_stage(whole, {0, 1, 3}, 3, 1), last = make_stage(whole, {0, 1, 3}, 3, 2);
  EXPECT_EQ(last.model.named_parameters().back().name, "u0.w");
  EXPECT_EQ(last.model.units.size(), 2u);
  for (const auto* stage : {&first, &middle, &last}) {
    ASSERT_EQ(stage->tied.size(), 1u);
    EXPECT_THAT(stage->tied.front().stages, ElementsAre(0, 2));
    EXPECT_EQ(stage->tied.front().tensor.defined(), stage != &middle);
  }
  EXPECT_TRUE(make_stage(whole, {0, 1, 4}, 1, 0).tied.empty()) << "all in one stage";
}

TEST(StageModel, InterleavedStagesHaveSeveralPieces) {
  const auto stage = make_stage(model(), {0, 1, 2, 3}, 2, 1);
  ASSERT_EQ(stage.pieces.size(), 2u);
  EXPECT_EQ(stage.pieces[0].units.front().name, "u1");
  EXPECT_EQ(stage.pieces[1].units.size(), 2u);
  EXPECT_EQ(describe_units(model(), {0, 1, 2, 3}, 2, 1), "units 1, 3-4 (u1, u3 … u4)");
}

TEST(Description, SaysWhatIsToCome) {
  const task::Values values = {torch::zeros({2, 3, 4}, torch::kBFloat16).set_requires_grad(true),
                               torch::Tensor(), torch::zeros({}, torch::kInt64)};
  const auto found = read_description(describe(values, comm::Scheme::int8));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->scheme, comm::Scheme::int8);
  EXPECT_EQ(found->values[0].sizes().vec(), (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(found->values[0].scalar_type(), torch::kBFloat16);
  EXPECT_FALSE(found->values[1].defined());
  EXPECT_EQ(found->values[2].dim(), 0);
  EXPECT_EQ(found->with_gradients, (std::vector<bool>{true, false, false}));
  EXPECT_FALSE(read_description(describe_nothing()));
}

TEST(Description, WhatMakesNoSenseIsFoundOut) {
  auto broken = describe({torch::zeros({2, 3})});
  for (const auto& [place, value] : {std::pair<int, std::int64_t>{0, 99},
                                     {1, 77},
                                     {2, 77},
                                     {3, 5},
                                     {4, 40},
                                     {5, std::int64_t{1} << 60},
                                     {6, -2}}) {
    auto changed = broken;
    changed[static_cast<std::size_t>(place)] = value;
    EXPECT_THROW(read_description(changed), Error) << place;
  }
  EXPECT_THROW(describe(task::Values(30, torch::zeros({1, 1}))), Error);
}

using ::testing::DoubleEq;

TEST(StageSeconds, TheSlowestOfEvenReplicasCounts) {
  const MeshShape shape{.stages = 2, .replicas = 2};
  const auto seconds = stage_seconds({.seconds = {6, 2, 4, 5}, .units = 1}, shape);
  EXPECT_THAT(seconds, ElementsAre(ElementsAre(6), ElementsAre(5)));
}

TEST(StageSeconds, UnevenReplicasShareByWhatTheyAreDealt) {
  const MeshShape shape{.stages = 2, .replicas = 0, .uneven = {1, 2}};
  const auto of_second = [&](const std::vector<double>& dealt) {
    return stage_seconds({.seconds = {6, 6, 2}, .units = 1, .dealt = dealt}, shape)[1][0];
  };
  EXPECT_THAT(of_second({}), DoubleEq(1.5)) << "by speed: 1 / (1/6 + 1/2)";
  EXPECT_THAT(of_second({1, 1, 1}), DoubleEq(3)) << "as many each: the slow one decides";
  EXPECT_THAT(of_second({1, 1, 3}), DoubleEq(1.5));
  EXPECT_THAT(of_second({1, 0, 1}), DoubleEq(2)) << "one gets nothing";
}

TEST(StageSeconds, TensorRanksComputeTheirParts) {
  const MeshShape shape{.stages = 1, .replicas = 1, .tensor = 2};
  const auto seconds = stage_seconds({.seconds = {6, 3}, .units = 1, .parts = {{1, 2}}}, shape);
  EXPECT_THAT(seconds[0][0], DoubleEq(2));
}

TEST(StageSeconds, StagesHaveTheirOwnParts) {
  const MeshShape shape{.stages = 2, .replicas = 2, .tensor = 2, .parts = {1, 2}};
  const auto of_second = [&](const std::vector<double>& dealt) {
    const MeasuredUnits measured{
        .seconds = {8, 8, 6, 6, 2, 4}, .units = 1, .parts = {{1}, {1, 2}}, .dealt = dealt};
    return stage_seconds(measured, shape)[1][0];
  };
  // Replicas that take 4 and 8/3.
  EXPECT_THAT(of_second({}), DoubleEq(1.6)) << "by speed: 1 / (1/4 + 3/8)";
  EXPECT_THAT(of_second({1, 1, 1, 1, 1, 1}), DoubleEq(2));
  EXPECT_THAT(of_second({1, 1, 1, 0, 2, 1}), DoubleEq(2)) << "three quarters of 8/3";
}

}  // namespace
}  // namespace bimetal::parallel::pipeline
