#include "bimetal/train/pipeline/stage_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;

/// Two stages of a model of ten units of 1,000 parameters, on ranks with these rooms.
StageNeeds needs_of(const std::vector<double>& rooms, const job::JobConfig& job,
                    const std::vector<int>& uneven = {}) {
  plan::MemoryInput measured;
  for (std::size_t r = 0; r < rooms.size(); ++r) {
    plan::RankMemory rank;
    rank.name = "rank " + std::to_string(r);
    rank.facts.units.assign(10, {.parameters = 1000});
    rank.facts.state_bytes = 8;
    rank.program = 500;
    rank.room = rank.pool_room = rooms[r];
    rank.pool = rank.name;
    measured.ranks.push_back(rank);
  }
  measured.asked.level = static_cast<int>(job.zero.level);
  const int replicas = uneven.empty() ? static_cast<int>(rooms.size()) / 2 : 0;
  return StageNeeds(measured, job, {.stages = 2, .replicas = replicas, .uneven = uneven}, 4);
}

std::size_t cut_of(const StageNeeds& needs, const parallel::MeshShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.ranks());
  const parallel::pipeline::MeasuredUnits alike{.seconds = std::vector<double>(10 * ranks, 1.0),
                                                .units = 10};
  return parallel::pipeline::measured_cut(alike, shape, 2, 4, needs.within(1.0, 2)).at(1);
}

constexpr double kUnit = 1000 * (4 + 4 + 8);

TEST(StageNeeds, AStageIsNoLargerThanItsWorkersRoom) {
  const parallel::MeshShape two{.stages = 2};
  EXPECT_EQ(cut_of(needs_of({20 * kUnit, 20 * kUnit}, {}), two), 5u) << "the fastest";
  EXPECT_EQ(cut_of(needs_of({8 * kUnit, 3.5 * kUnit}, {}), two), 7u);
  EXPECT_EQ(cut_of(needs_of({3.5 * kUnit, 8 * kUnit}, {}), two), 3u);
}

// Half of their states is each replica's; there are no buckets at level 1.
TEST(StageNeeds, TheReplicaWithTheLeastRoomCounts) {
  job::JobConfig job;
  job.zero.level = 1;
  const double four = 4 * 12000 + 4000;  // and gradients on their way
  const auto needs = needs_of({99 * kUnit, 99 * kUnit, 99 * kUnit, four}, job);
  EXPECT_EQ(cut_of(needs, {.stages = 2, .replicas = 2}), 6u);
  const auto uneven = needs_of({99 * kUnit, 99 * kUnit, four}, job, {1, 2});
  EXPECT_EQ(cut_of(uneven, {.stages = 2, .replicas = 0, .uneven = {1, 2}}), 6u);
}

TEST(StageNeeds, RanksOfAHostShareItsMemory) {
  plan::MemoryInput measured;
  plan::RankMemory rank;
  rank.facts.units.assign(10, {.parameters = 1000});
  rank.room = rank.pool_room = 12000;
  rank.pool = "host";
  measured.ranks = {rank, rank};
  const StageNeeds needs(measured, {}, {.stages = 2}, 4);
  EXPECT_EQ(needs.within(1.0, 2).room, (std::vector<double>{6000, 6000}));
  EXPECT_EQ(needs.within(0.5, 2).room, (std::vector<double>{3000, 3000}));
}

TEST(StageNeeds, TellsWhatIsPlannedAndWhoLacksMuch) {
  const auto needs = needs_of({8 * kUnit, 3.5 * kUnit}, {});
  const auto planned = needs.planned({0, 7});
  EXPECT_EQ(planned[0].planned, 500 + 7 * kUnit);
  EXPECT_EQ(planned[1].parameters, 3 * 4000);
  EXPECT_EQ(planned[1].optimizer, 3 * 8000);
  EXPECT_FALSE(needs.lacking({0, 7}));
  ASSERT_TRUE(needs.lacking({0, 5}));
  EXPECT_THAT(*needs.lacking({0, 5}), HasSubstr("rank 1, stage 1 of 2"));
}

}  // namespace
}  // namespace bimetal::train
