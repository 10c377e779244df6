#include "bimetal/train/pipeline/piece_seconds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::train {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

constexpr double kWhole[] = {1};

TEST(PieceSeconds, TheSlowestOfEvenReplicasCounts) {
  const parallel::MeshShape shape{.stages = 2, .replicas = 2};
  const auto seconds = piece_seconds(std::vector<double>{6, 2, 4, 5}, shape, 2, kWhole, {});
  EXPECT_THAT(seconds, ElementsAre(ElementsAre(6), ElementsAre(5)));
}

TEST(PieceSeconds, UnevenReplicasShareByWhatTheyAreDealt) {
  const parallel::MeshShape shape{.stages = 2, .replicas = 0, .uneven = {1, 2}};
  const std::vector<double> all = {6, 6, 2};
  const auto of_second = [&](const std::vector<double>& dealt) {
    return piece_seconds(all, shape, 2, kWhole, dealt)[1][0];
  };
  EXPECT_THAT(of_second({}), DoubleEq(1.5)) << "by speed: 1 / (1/6 + 1/2)";
  EXPECT_THAT(of_second({1, 1, 1}), DoubleEq(3)) << "as many each: the slow one decides";
  EXPECT_THAT(of_second({1, 1, 3}), DoubleEq(1.5));
  EXPECT_THAT(of_second({1, 0, 1}), DoubleEq(2)) << "one gets nothing";
}

TEST(PieceSeconds, TensorRanksComputeTheirParts) {
  const parallel::MeshShape shape{.stages = 1, .replicas = 1, .tensor = 2};
  const auto seconds =
      piece_seconds(std::vector<double>{6, 3}, shape, 1, std::vector<double>{1, 2}, {});
  EXPECT_THAT(seconds[0][0], DoubleEq(2));
}

}  // namespace
}  // namespace bimetal::train
