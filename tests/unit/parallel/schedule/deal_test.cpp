#include "bimetal/parallel/schedule/deal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/simulate.h"

namespace bimetal::parallel::schedule {
namespace {

std::string listed(const Deal& deal, Kind kind, int stage, int replica) {
  std::string text;
  for (const auto& action : deal.actions(kind, 1, stage, replica)) {
    text += (text.empty() ? "" : " ") + to_string(action);
  }
  return text;
}

std::vector<Runs> lists_of(const Deal& deal, Kind kind, const ReplicaSeconds& seconds) {
  std::vector<Runs> all;
  for (int stage = 0; stage < deal.stages(); ++stage) {
    const auto& of_stage = seconds[static_cast<std::size_t>(stage)];
    for (std::size_t replica = 0; replica < of_stage.size(); ++replica) {
      all.push_back(
          {stage, deal.actions(kind, 1, stage, static_cast<int>(replica)), of_stage[replica]});
    }
  }
  return all;
}

TEST(Deal, GivesTurnsToReplicasAndKeepsThemBusy) {
  const std::vector<std::int64_t> six(6, 1);
  const Deal deal(std::vector<int>{1, 2}, six);
  EXPECT_EQ(listed(deal, Kind::one_f_one_b, 0, 0), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
  EXPECT_EQ(listed(deal, Kind::one_f_one_b, 1, 0), "F0 B0 F2 B2 F4 B4");
  EXPECT_EQ(listed(deal, Kind::one_f_one_b, 1, 1), "F1 B1 F3 B3 F5 B5");
  EXPECT_EQ(listed(deal, Kind::gpipe, 1, 1), "F1 F3 F5 B1 B3 B5");
  EXPECT_EQ(deal.samples(1, 1), 3);
  const Deal other(std::vector<int>{2, 1}, six);
  EXPECT_EQ(listed(other, Kind::one_f_one_b, 0, 1), "F1 F3 B1 F5 B3 B5");
}

TEST(Deal, OfStagesWithOneReplicaIsTheirSchedule) {
  const std::vector<std::int64_t> samples(6, 2);
  const Deal deal(std::vector<int>{1, 1, 1}, samples);
  for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::interleaved, Kind::zero_bubble}) {
    const int chunks = kind == Kind::interleaved ? 2 : 1;
    for (int stage = 0; stage < 3; ++stage) {
      EXPECT_EQ(deal.actions(kind, chunks, stage, 0), schedule(kind, stage, {3, 6, chunks}));
    }
  }
}

TEST(Deal, FollowsSpeedAndLeavesOutWhatHasNoSamples) {
  const std::vector<std::int64_t> samples = {2, 0, 2, 2, 0, 2, 2, 2, 2, 2};
  const Deal deal(ReplicaSeconds{{1}, {1, 3}}, samples);
  EXPECT_EQ(deal.samples(1, 0), 12);
  EXPECT_EQ(deal.samples(1, 1), 4);
  EXPECT_EQ(deal.replica(1, 1), -1);
  const Deal slow(ReplicaSeconds{{1}, {1, 30}}, samples);
  EXPECT_EQ(slow.samples(1, 1), 0);
  EXPECT_EQ(listed(slow, Kind::one_f_one_b, 1, 1), "");
  const Deal unknown(ReplicaSeconds{{1}, {0, 3}}, samples);
  EXPECT_EQ(unknown.samples(1, 1), 8) << "equals";
  EXPECT_THROW(Deal(ReplicaSeconds{{1}, {}}, samples), Error);
  EXPECT_THROW(deal.actions(Kind::interleaved, 2, 0, 0), Error);
}

TEST(Deal, IsNoLaterThanEachToWhomItWouldBeDoneFirstBy) {
  std::mt19937 random(5);
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> seconds(static_cast<std::size_t>(number(1, 5)));
    for (auto& one : seconds) one = number(1, 9);
    std::vector<std::int64_t> samples(static_cast<std::size_t>(number(1, 20)));
    for (auto& some : samples) some = number(1, 6);
    std::vector<double> done(seconds.size());
    for (const auto some : samples) {
      std::vector<double> then;
      for (std::size_t r = 0; r < seconds.size(); ++r) then.push_back(done[r] + some * seconds[r]);
      const auto first = std::ranges::min_element(then) - then.begin();
      done[static_cast<std::size_t>(first)] = then[static_cast<std::size_t>(first)];
    }
    const Deal deal(ReplicaSeconds{seconds}, samples);
    for (std::size_t r = 0; r < seconds.size(); ++r) {
      const auto own = static_cast<double>(deal.samples(0, static_cast<int>(r)));
      EXPECT_LE(own * seconds[r], std::ranges::max(done));
    }
  }
}

// Else one micro-batch in the midst of 16 would have the stage before it keep half of them.
TEST(Deal, ASlowReplicaDoesNotFillTheStagesBefore) {
  const std::vector<std::int64_t> samples(16, 1);
  const Deal deal(ReplicaSeconds{{1}, {1, 12}}, samples);
  EXPECT_EQ(deal.samples(1, 1), 1);
  EXPECT_EQ(deal.in_flight(Kind::one_f_one_b, 0, 0), 5)
      << "its own and two for each replica behind it";
}

TEST(Deal, NeverComesToAStandstill) {
  std::mt19937 random(3);
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution(least, most)(random);
  };
  for (int i = 0; i < 500; ++i) {
    ReplicaSeconds seconds(static_cast<std::size_t>(number(1, 4)));
    for (auto& of_stage : seconds) {
      of_stage.resize(static_cast<std::size_t>(number(1, 4)));
      for (auto& one : of_stage) one = number(1, 9);
    }
    std::vector<std::int64_t> samples(static_cast<std::size_t>(number(1, 12)));
    for (auto& some : samples) some = number(0, 3);
    const auto left = std::ranges::count_if(samples, [](auto some) { return some > 0; });
    const Deal deal(seconds, samples);
    const std::vector<PieceCost> pieces(seconds.size());
    for (const Kind kind : {Kind::gpipe, Kind::one_f_one_b, Kind::zero_bubble}) {
      const auto done = simulate(lists_of(deal, kind, seconds), deal.stages(), pieces);
      ASSERT_EQ(done.deadlock, "");
      std::map<What, int> counts;
      for (const auto& list : done.stages) {
        for (const auto& timed : list) ++counts[timed.action.what];
      }
      EXPECT_EQ(counts[What::forward], left * deal.stages());
      EXPECT_EQ(counts[What::backward] + counts[What::backward_input], left * deal.stages());
      EXPECT_EQ(counts[What::backward_weight], counts[What::backward_input]);
    }
  }
}

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

// Two messages of 10 on one link: the second comes 10 after the first.
TEST(Simulate, ALinkCarriesOneMessageAtATime) {
  const std::vector<PieceCost> pieces = {{1, 0, 0, 10, 0}, {1, 0, 0}};
  const auto found = simulate(schedules(Kind::gpipe, {2, 2}), pieces);
  EXPECT_DOUBLE_EQ(found.stages[1][0].begin, 11);
  EXPECT_DOUBLE_EQ(found.stages[1][1].begin, 21);
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
