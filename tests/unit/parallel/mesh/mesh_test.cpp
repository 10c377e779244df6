#include "bimetal/parallel/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "bimetal/parallel/mesh/model_part.h"
#include "support/errors.h"

namespace bimetal::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string misfit(const MeshShape& asked, int ranks) {
  return text_of(ErrorCode::InvalidArgument, [&] { fit_mesh(asked, ranks); });
}

TEST(Mesh, PlacesAndRanksAreEachOthersInverse) {
  const MeshShape shape{3, 2, 2};
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    EXPECT_EQ(rank_at(shape, place_of(shape, rank)), rank);
  }
  EXPECT_EQ(place_of(shape, 7), (MeshPlace{1, 1, 1}));
}

TEST(Mesh, StagesMayHaveReplicasOfTheirOwnNumber) {
  const MeshShape shape{.stages = 3, .replicas = 0, .uneven = {1, 2, 1}};
  EXPECT_EQ(shape.ranks(), 4);
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    EXPECT_EQ(rank_at(shape, place_of(shape, rank)), rank);
  }
  EXPECT_EQ(place_of(shape, 2), (MeshPlace{1, 1, 0}));
  EXPECT_EQ(place_of(shape, 3), (MeshPlace{2, 0, 0}));
  EXPECT_EQ(name_of(shape, 0), "stage 0 of 3");
  EXPECT_EQ(name_of(shape, 2), "stage 1 of 3, replica 1");
  EXPECT_EQ(picture(shape, {"a", "b", "c"}),
            "  stage 0  [rank 0]  a\n  stage 1  [rank 1] [rank 2]  b\n  stage 2  [rank 3]  c");
}

TEST(Mesh, StagesMayHavePartsOfTheirOwnNumber) {
  const MeshShape shape{.stages = 3, .replicas = 2, .tensor = 3, .parts = {1, 3, 2}};
  EXPECT_EQ(shape.ranks(), 12);
  EXPECT_EQ(shape.pipeline_ranks(), 6);
  EXPECT_FALSE(shape.even());
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    EXPECT_EQ(rank_at(shape, place_of(shape, rank)), rank);
  }
  EXPECT_EQ(place_of(shape, 7), (MeshPlace{1, 1, 2}));
  EXPECT_EQ(name_of(shape, 1), "stage 0 of 3, replica 1");
  EXPECT_EQ(name_of(shape, 11), "stage 2 of 3, replica 1, part 1 of 2");
  EXPECT_EQ(picture(shape, {"a", "b", "c"}),
            "  stage 0  [rank 0] [rank 1]  a\n  stage 1  [ranks 2-4] [ranks 5-7]  b\n"
            "  stage 2  [ranks 8-9] [ranks 10-11]  c");
}

TEST(Mesh, RanksHaveNamesThatPeopleUnderstand) {
  EXPECT_EQ(name_of({3, 2, 1}, 2), "stage 1 of 3, replica 0");
  EXPECT_EQ(name_of({2, 1, 1}, 1), "stage 1 of 2");
  EXPECT_EQ(name_of({1, 1, 2}, 1), "part 1 of 2");
  EXPECT_EQ(name_of({1, 1, 1}, 0), "rank 0");
  EXPECT_EQ(picture({2, 2, 2}, {"units 0 (a)", "units 1-2 (b … c)"}),
            "  stage 0  [ranks 0-1] [ranks 2-3]  units 0 (a)\n"
            "  stage 1  [ranks 4-5] [ranks 6-7]  units 1-2 (b … c)");
}

TEST(Mesh, ErrorsSayWhoIsMeant) {
  const MeshShape shape{2, 2, 1};
  const auto lost = named(Error(ErrorCode::PeerLost, "rank 3 is gone", 3), shape, 0);
  EXPECT_STREQ(
      lost.what(),
      "stage 0 of 2, replica 0 (rank 0): rank 3 is gone; rank 3 is stage 1 of 2, replica 1");
  EXPECT_EQ(lost.code(), ErrorCode::PeerLost);
  EXPECT_EQ(lost.rank(), 3);
  EXPECT_STREQ(named(lost, shape, 0).what(), lost.what());
  EXPECT_STREQ(named(Error(ErrorCode::Timeout, "too late"), shape, 2).what(),
               "stage 1 of 2, replica 0 (rank 2): too late");
}

TEST(Mesh, SaysWhatWouldFit) {
  EXPECT_EQ(fit_mesh({2, 0, 1}, 6), (MeshShape{2, 3, 1}));
  EXPECT_EQ(fit_mesh({2, 3, 1}, 6), (MeshShape{2, 3, 1}));
  EXPECT_THAT(misfit({2, 0, 2}, 6), HasSubstr("this job has 6: 4 or 8 would do"));
  EXPECT_THAT(misfit({3, 0, 1}, 2), HasSubstr("this job has 2: 3 would do"));
  EXPECT_THAT(misfit({2, 0, 1}, 3), HasSubstr("or mesh.replicas with a number for each stage"));
  EXPECT_THAT(misfit({2, 2, 1}, 3), HasSubstr("start 4 workers, or leave mesh.replicas out"));
}

TEST(Mesh, NoMeshIsSoLargeThatItsRanksCountAsNone) {
  constexpr int kMost = 1 << 20;
  const MeshShape product{.stages = 4096, .replicas = 0, .tensor = kMost};
  EXPECT_THAT(misfit(product, 4), HasSubstr("this job has 4"));
  const MeshShape uneven{.stages = 2, .replicas = 0, .tensor = kMost, .uneven = {1, kMost}};
  EXPECT_THAT(misfit(uneven, 4), HasSubstr("this job has 4"));
  const MeshShape parts{.stages = 2, .replicas = kMost, .parts = {1, kMost}};
  EXPECT_THAT(misfit(parts, 4), HasSubstr("this job has 4"));
}

TEST(Mesh, SaysWhatWouldFitOfUnevenReplicas) {
  const MeshShape uneven{.stages = 2, .replicas = 0, .uneven = {1, 2}};
  EXPECT_EQ(fit_mesh(uneven, 3), uneven);
  EXPECT_EQ(fit_mesh({.stages = 2, .replicas = 0, .uneven = {3, 3}}, 6), (MeshShape{2, 3, 1}));
  EXPECT_THAT(misfit(uneven, 4), HasSubstr("mesh.replicas = [1, 2] need 3 workers, and this job "
                                           "has 4: start 3, or give numbers that add up to 4"));
  EXPECT_THAT(misfit({.stages = 1, .uneven = {1, 2}}, 3), HasSubstr("set mesh.stages = 2"));
  EXPECT_THAT(misfit(uneven, 1), Not(HasSubstr("add up"))) << "two stages want two";
  const MeshShape parts{.stages = 2, .replicas = 0, .tensor = 2, .uneven = {1, 2}};
  EXPECT_THAT(misfit(parts, 5), Not(HasSubstr("add up"))) << "no number comes to 5 workers";
}

TEST(Mesh, SaysWhatWouldFitOfUnevenParts) {
  const MeshShape asked{.stages = 2, .replicas = 0, .parts = {1, 2}};
  EXPECT_EQ(fit_mesh(asked, 6),
            (MeshShape{.stages = 2, .replicas = 2, .tensor = 2, .parts = {1, 2}}));
  EXPECT_EQ(fit_mesh({.stages = 2, .replicas = 0, .parts = {2, 2}}, 4), (MeshShape{2, 1, 2}));
  EXPECT_EQ(fit_mesh({.stages = 2, .uneven = {2, 1}, .parts = {1, 2}}, 4).ranks(), 4);
  EXPECT_THAT(misfit(asked, 4), HasSubstr("mesh.stages = 2 and mesh.tensor = [1, 2] need workers "
                                          "in multiples of 3, and this job has 4: 3 or 6 would"));
  EXPECT_THAT(misfit({.stages = 2, .replicas = 2, .parts = {1, 2}}, 3),
              HasSubstr("start 6 workers, or leave mesh.replicas out"));
  EXPECT_THAT(misfit({.stages = 3, .replicas = 0, .parts = {1, 2}}, 3),
              HasSubstr("mesh.tensor = [1, 2] with mesh.stages = 3: give a number for each stage"));
  EXPECT_THAT(misfit({.stages = 2, .uneven = {2, 1}, .parts = {1, 2}}, 5),
              HasSubstr("need with mesh.tensor = [1, 2] 4 workers, and this job has 5: start 4"));
}

}  // namespace
}  // namespace bimetal::parallel
