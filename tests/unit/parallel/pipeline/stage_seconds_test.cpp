#include "bimetal/parallel/pipeline/stage_seconds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::parallel::pipeline {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

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
