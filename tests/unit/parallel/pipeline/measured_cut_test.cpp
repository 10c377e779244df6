#include "bimetal/parallel/pipeline/measured_cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::parallel::pipeline {
namespace {

using ::testing::ElementsAre;

/// Ten units, each of which takes so long on these ranks.
MeasuredUnits ten_units(const std::vector<double>& seconds) {
  MeasuredUnits measured{.seconds = {}, .units = 10};
  for (const auto of_rank : seconds) measured.seconds.insert(measured.seconds.end(), 10, of_rank);
  return measured;
}

TEST(MeasuredCut, ASlowDeviceGetsFewerUnits) {
  EXPECT_THAT(measured_cut(ten_units({1, 1}), {.stages = 2}, 1, 0), ElementsAre(0, 5));
  EXPECT_THAT(measured_cut(ten_units({1, 4}), {.stages = 2}, 1, 0), ElementsAre(0, 8));
}

TEST(MeasuredCut, AStageIsAsSlowAsTheSlowestOfItsReplicas) {
  EXPECT_THAT(measured_cut(ten_units({1, 4, 1, 1}), {.stages = 2, .replicas = 2}, 1, 0),
              ElementsAre(0, 2));
}

TEST(MeasuredCut, ReplicasOfTheirOwnNumberShareAStage) {
  EXPECT_THAT(
      measured_cut(ten_units({1, 2, 2}), {.stages = 2, .replicas = 0, .uneven = {1, 2}}, 1, 0),
      ElementsAre(0, 5));
}

// Layer by layer a unit on the slow device costs what it takes more there, and saves nothing.
TEST(MeasuredCut, WithOneMicroBatchTheSlowDeviceGetsNoMoreThanItMust) {
  MeasuredUnits measured{.seconds = std::vector<double>(12, 1), .units = 12};
  measured.seconds.insert(measured.seconds.end(), 12, 3);
  EXPECT_THAT(measured_cut(measured, {.stages = 2}, 1, 1), ElementsAre(0, 11));
  EXPECT_THAT(measured_cut(measured, {.stages = 2}, 1, 16), ElementsAre(0, 9));
  EXPECT_THAT(measured_cut(measured, {.stages = 2}, 1, 0), ElementsAre(0, 9));
}

TEST(MeasuredCut, ASlowLinkIsCrossedWhereLessIsSent) {
  auto measured = ten_units({1, 1});
  measured.send = {{8, 8, 8, 8, 8, 8, 1, 1, 1, 1}};
  EXPECT_THAT(measured_cut(measured, {.stages = 2}, 1, 8), ElementsAre(0, 7));
}

}  // namespace
}  // namespace bimetal::parallel::pipeline
