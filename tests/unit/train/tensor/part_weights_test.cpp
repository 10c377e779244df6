#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "bimetal/base/error.h"
#include "bimetal/train/tensor/replicas.h"
#include "support/errors.h"

namespace bimetal::train {
namespace {

using ::testing::ElementsAre;

constexpr std::array<double, 6> kAlone = {9, 9, 1, 3, 2, 4};

TEST(PartWeights, AreAlikeOnStagesWithEquallyMany) {
  job::MeshConfig mesh;
  mesh.tensor_parts = "speed";
  const parallel::MeshShape shape{.stages = 2, .replicas = 1, .tensor = 3};
  EXPECT_THAT(part_weights(mesh, shape, kAlone),
              ElementsAre(ElementsAre(12, 11, 5), ElementsAre(12, 11, 5)));
  EXPECT_THAT(part_weights(mesh, shape, {}),
              ElementsAre(ElementsAre(1, 1, 1), ElementsAre(1, 1, 1)));
  mesh.tensor_weights = {3, 2, 1};
  EXPECT_THAT(part_weights(mesh, shape, kAlone),
              ElementsAre(ElementsAre(3, 2, 1), ElementsAre(3, 2, 1)));
}

TEST(PartWeights, OfOtherStagesAreTheirOwn) {
  job::MeshConfig mesh;
  mesh.tensor_parts = "speed";
  const parallel::MeshShape shape{.stages = 2, .replicas = 2, .tensor = 2, .parts = {1, 2}};
  EXPECT_THAT(part_weights(mesh, shape, kAlone), ElementsAre(ElementsAre(18), ElementsAre(3, 7)));
  mesh.tensor_parts = "equal";
  mesh.tensor_weights = {2, 1};
  EXPECT_THAT(part_weights(mesh, shape, kAlone), ElementsAre(ElementsAre(1), ElementsAre(2, 1)));
  mesh.tensor_weights = {3, 2, 1};
  expect_error(ErrorCode::InvalidArgument, {"has 3 weights, and stage 1 of 2 has 2 ranks"},
               [&] { part_weights(mesh, shape, {}); });
}

}  // namespace
}  // namespace bimetal::train
