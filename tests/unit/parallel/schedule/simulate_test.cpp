#include "bimetal/parallel/schedule/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/base/error.h"

namespace bimetal::parallel::schedule {
namespace {

using ::testing::HasSubstr;

std::vector<PieceCost> alike(int pieces, double part = 1) {
  return std::vector<PieceCost>(static_cast<std::size_t>(pieces), {part, part, part});
}

double idle(Kind kind, const Shape& shape, double part = 1) {
  const auto found = simulate(schedules(kind, shape), alike(shape.stages * shape.chunks, part));
  return found.seconds - found.busy.front();
}

// p − 1 times: forward and backward; a v-th of it with v chunks; forward and the difference of the
// backward's parts.
TEST(Simulate, BubblesAreThoseOfThePapers) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int rounds = 2; rounds <= 4; ++rounds) {
      const int m = stages * rounds;
      EXPECT_DOUBLE_EQ(idle(Kind::gpipe, {stages, m}), 3.0 * (stages - 1));
      EXPECT_DOUBLE_EQ(idle(Kind::one_f_one_b, {stages, m}), 3.0 * (stages - 1));
      EXPECT_DOUBLE_EQ(idle(Kind::zero_bubble, {stages, m}), 1.0 * (stages - 1));
      for (int chunks = 2; chunks <= 3; ++chunks) {
        EXPECT_NEAR(idle(Kind::interleaved, {stages, m, chunks}, 1.0 / chunks),
                    3.0 * (stages - 1) / chunks, 1e-9);
      }
    }
  }
}

TEST(Simulate, StagesComeNearTheirBound) {
  EXPECT_DOUBLE_EQ(simulate(schedules(Kind::one_f_one_b, {3, 5}), alike(3)).seconds,
                   plain_bound(alike(3), 5, 3));
  const std::vector<PieceCost> pieces = {{1, 1, 1}, {3, 3, 3}, {2, 2, 2}};
  for (const int m : {1, 2, 5, 12}) {
    const auto found = simulate(schedules(Kind::one_f_one_b, {3, m}), pieces);
    EXPECT_LE(found.seconds, plain_bound(pieces, m, 3)) << m;
    EXPECT_GE(found.seconds, 9 * m + 3) << "the slowest stage, and what must come before and after";
    const auto split = simulate(schedules(Kind::zero_bubble, {3, m}), pieces);
    EXPECT_LT(split.seconds, found.seconds);
    EXPECT_LT(split.bubble, found.bubble);
  }
}

TEST(Simulate, OneMicroBatchIsLayerByLayer) {
  const std::vector<PieceCost> pieces = {{1, 2, 3, 10, 0}, {4, 5, 6, 0, 20}};
  const auto found = simulate(schedules(Kind::gpipe, {2, 1}), pieces);
  EXPECT_DOUBLE_EQ(found.seconds, 1 + 10 + 4 + 11 + 20 + 5);
  EXPECT_DOUBLE_EQ(found.stages[0][1].begin, 46);
  EXPECT_DOUBLE_EQ(found.bubble, 1 - 21.0 / 102);
}

// Two messages of 10 on one link: the second comes 10 after the first.
TEST(Simulate, ALinkCarriesOneMessageAtATime) {
  const std::vector<PieceCost> pieces = {{1, 0, 0, 10, 0}, {1, 0, 0}};
  const auto found = simulate(schedules(Kind::gpipe, {2, 2}), pieces);
  EXPECT_DOUBLE_EQ(found.stages[1][0].begin, 11);
  EXPECT_DOUBLE_EQ(found.stages[1][1].begin, 21);
}

// What both chunks of stage 0 give goes to stage 1 over one link.
TEST(Simulate, ChunksShareTheLinksOfTheirStages) {
  const std::vector<PieceCost> pieces = {{1, 0, 0, 10, 0}, {1, 0, 0}, {1, 0, 0, 5, 0}, {1, 0, 0}};
  std::vector<std::vector<Action>> lists(2);
  lists[0] = {{What::forward, 0}, {What::forward, 0, 1}, {What::forward, 1}};
  lists[1] = {{What::forward, 0}, {What::forward, 1}, {What::forward, 0, 1}};
  const auto found = simulate(lists, pieces);
  EXPECT_DOUBLE_EQ(found.stages[0][1].begin, 12);
  EXPECT_DOUBLE_EQ(found.stages[0][1].end, 13) << "and is sent until 18";
  EXPECT_DOUBLE_EQ(found.stages[1][1].begin, 28);
}

TEST(Simulate, InterleavedTakesItsBoundWherePiecesAreAlike) {
  for (const int stages : {2, 3, 4}) {
    for (const int chunks : {1, 2, 3}) {
      const Shape shape{stages, 3 * stages, chunks};
      const auto pieces = alike(stages * chunks);
      EXPECT_DOUBLE_EQ(simulate(schedules(Kind::interleaved, shape), pieces).seconds,
                       plain_bound(pieces, shape.micro_batches, static_cast<std::size_t>(stages)));
    }
  }
}

TEST(Simulate, FindsDeadlocks) {
  auto lists = schedules(Kind::one_f_one_b, {2, 2});
  lists[0] = {{What::forward, 0}, {What::backward, 0}, {What::forward, 1}, {What::backward, 1}};
  lists[1] = {{What::forward, 0}, {What::forward, 1}, {What::backward, 0}, {What::backward, 1}};
  const auto found = simulate(lists, alike(2));
  EXPECT_EQ(found.deadlock, "stage 0 waits for B0 of piece 1, stage 1 waits for F1 of piece 0");
}

TEST(Simulate, NeedsCostsOfEveryPiece) {
  EXPECT_THROW(simulate(schedules(Kind::gpipe, {2, 2}), alike(3)), Error);
  EXPECT_THROW(simulate(schedules(Kind::interleaved, {2, 2, 2}), alike(2)), Error);
}

}  // namespace
}  // namespace bimetal::parallel::schedule
