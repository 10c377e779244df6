#include "bimetal/train/pipeline/stage_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/parallel/pipeline/stage_seconds.h"

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;

/// The measurements of a model of ten units of 1,000 parameters, on ranks with these rooms.
plan::MemoryInput measured_of(const std::vector<double>& rooms, const job::JobConfig& job) {
  plan::MemoryInput measured;
  for (std::size_t r = 0; r < rooms.size(); ++r) {
    plan::RankMemory rank;
    rank.name = "rank " + std::to_string(r);
    rank.facts.units.assign(10, {.parameters = 1000});
    rank.facts.state_bytes = 8;
    rank.program = 500;
    rank.load.bucket_bytes = 1;  // flat tensors by unit
    rank.room = rank.pool_room = rooms[r];
    rank.pool = rank.name;
    measured.ranks.push_back(rank);
  }
  measured.asked.level = static_cast<int>(job.zero.level);
  return measured;
}

/// The needs of two stages of it.
StageNeeds needs_of(const std::vector<double>& rooms, const job::JobConfig& job,
                    const std::vector<int>& uneven = {}) {
  const auto measured = measured_of(rooms, job);
  const int replicas = uneven.empty() ? static_cast<int>(rooms.size()) / 2 : 0;
  return StageNeeds(measured, job, {.stages = 2, .replicas = replicas, .uneven = uneven}, 4);
}

std::size_t cut_of(const StageNeeds& needs, const parallel::MeshShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.ranks());
  const parallel::pipeline::MeasuredUnits alike{.seconds = std::vector<double>(10 * ranks, 1.0),
                                                .units = 10};
  return parallel::pipeline::measured_cut(alike, shape, 1, 4, needs.within(1.0)).at(1);
}

constexpr double kUnit = 1000 * (4 + 4 + 8);

TEST(StageNeeds, AStageIsNoLargerThanItsWorkersRoom) {
  const parallel::MeshShape two{.stages = 2};
  EXPECT_EQ(cut_of(needs_of({20 * kUnit, 20 * kUnit}, {}), two), 5u) << "the fastest";
  EXPECT_EQ(cut_of(needs_of({8 * kUnit, 3.5 * kUnit}, {}), two), 7u);
  EXPECT_EQ(cut_of(needs_of({3.5 * kUnit, 8 * kUnit}, {}), two), 3u);
}

/// Accelerators whose states are on their hosts, each with so much free.
plan::MemoryInput with_states_on_hosts(const std::vector<double>& host_rooms,
                                       const job::JobConfig& job) {
  auto measured = measured_of(std::vector(host_rooms.size(), 99 * kUnit), job);
  for (std::size_t r = 0; r < host_rooms.size(); ++r) {
    auto& rank = measured.ranks[r];
    rank.load.host_is_device = false;
    rank.optimizer = plan::Place::Host;
    rank.host_pool = "host " + std::to_string(r);
    rank.host_room = host_rooms[r];
  }
  return measured;
}

// Together with the workers there, however large a part of it each needs.
TEST(StageNeeds, AHostHasRoomForItsWorkersAndForWhatAcceleratorsKeepThere) {
  job::JobConfig job;
  job.zero.level = 1;
  const auto needs_in = [&](double bytes) {
    auto measured = with_states_on_hosts({0, bytes}, job);
    auto& worker = measured.ranks.front();
    worker.load.host_is_device = true;
    worker.pool = measured.ranks.back().host_pool;
    worker.room = worker.pool_room = bytes;
    return StageNeeds(measured, job, {.stages = 2}, 4);
  };
  const double all = (7 * kUnit + 4000) + 3 * 8000;  // 7 units, and the states of 3
  EXPECT_FALSE(needs_in(all).lacking({0, 7}));
  EXPECT_TRUE(needs_in(0.8 * all).lacking({0, 7}));
}

// Four samples of 1,000 bytes a unit, of two micro-batches, at first; then one.
TEST(StageNeeds, NobodyLacksWhatSmallerMicroBatchesSave) {
  job::JobConfig job;
  job.train.global_batch = 16;
  const auto needs_in = [&](double room) {
    auto measured = measured_of({room, room}, job);
    for (auto& rank : measured.ranks) {
      rank.facts.state_bytes = 0;
      for (auto& unit : rank.facts.units) unit.saved.per_sample = 1000;
    }
    return StageNeeds(measured, job, {.stages = 2}, 4);
  };
  EXPECT_EQ(needs_in(60000).planned({0, 5})[0].peak(), 500 + 5 * (8000 + 2 * 4 * 1000));
  EXPECT_FALSE(needs_in(60000).lacking({0, 5}));
  ASSERT_TRUE(needs_in(40000).lacking({0, 5}));
  EXPECT_THAT(*needs_in(40000).lacking({0, 5}), HasSubstr("micro-batches of one sample"));
}

// Two of four micro-batches of four samples are under way in the first stage. One sample of them
// leaves 1,000 bytes a unit, its input 10.
TEST(StageNeeds, StagesWithoutRoomForActivationsRecompute) {
  job::JobConfig job;
  job.train.global_batch = 16;
  const auto needs_in = [&](double first, double second, bool may) {
    auto measured = measured_of({first, second}, job);
    for (auto& rank : measured.ranks) {
      rank.facts.state_bytes = 0;
      rank.may_recompute = may;
      for (auto& unit : rank.facts.units) {
        unit.saved.per_sample = 1000;
        unit.output.per_sample = 10;
      }
    }
    return StageNeeds(measured, job, {.stages = 2}, 4);
  };
  const double plainly = 5 * (8000 + 2 * 4 * 1000);
  const auto needs = needs_in(0.8 * plainly, plainly, true);
  EXPECT_TRUE(needs.may_recompute());
  EXPECT_EQ(needs.must_recompute({0, 5}), (std::vector<bool>{true, false}));
  const auto chosen = needs.recomputing({true, false});
  EXPECT_LT(chosen.planned({0, 5})[0].model(), 0.8 * plainly);
  EXPECT_EQ(chosen.planned({0, 5})[1].model(), needs.planned({0, 5})[1].model());
  EXPECT_FALSE(needs.within(1.0)(0, 0)[4]);
  EXPECT_TRUE(needs.recomputing().within(1.0)(0, 0)[4]);
  EXPECT_FALSE(needs.must_recompute({0, 1})[0]) << "one unit is where backward begins";
  const auto fixed = needs_in(0.8 * plainly, plainly, false);
  EXPECT_FALSE(fixed.may_recompute());
  EXPECT_EQ(fixed.must_recompute({0, 5}), (std::vector<bool>{false, false}));
}

// Each lacks a part of what the pool lacks: by a tenth of the whole pool no one of many would.
TEST(StageNeeds, ManyRanksOfAHostLackWhatTheHostLacks) {
  plan::MemoryInput measured;
  plan::RankMemory rank;
  rank.name = "rank";
  rank.facts.units.assign(12, {.parameters = 1000});
  rank.load.bucket_bytes = 1;
  rank.pool = "host";
  const parallel::MeshShape four{.stages = 4};
  const std::vector<std::size_t> begins = {0, 3, 6, 9};
  measured.ranks.assign(4, rank);
  double all = 0;
  for (const auto& use : StageNeeds(measured, {}, four, 4).planned(begins)) all += use.model();
  const auto lacking = [&](double over) {
    for (auto& one : measured.ranks) one.room = one.pool_room = all / over;
    return StageNeeds(measured, {}, four, 4).lacking(begins);
  };
  EXPECT_FALSE(lacking(1.05));
  EXPECT_TRUE(lacking(1.25));
}

TEST(StageNeeds, TellsWhatIsPlannedAndWhoLacksMuch) {
  const auto needs = needs_of({8 * kUnit, 3.5 * kUnit}, {});
  const auto planned = needs.planned({0, 7});
  EXPECT_EQ(planned[0].peak(), 500 + 7 * kUnit);
  EXPECT_EQ(planned[1].parameters, 3 * 4000);
  EXPECT_EQ(planned[1].optimizer, 3 * 8000);
  EXPECT_FALSE(needs.lacking({0, 7}));
  ASSERT_TRUE(needs.lacking({0, 5}));
  EXPECT_THAT(*needs.lacking({0, 5}), HasSubstr("rank 1, stage 1 of 2"));
}

}  // namespace
}  // namespace bimetal::train
