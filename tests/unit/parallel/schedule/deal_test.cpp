#include "bimetal/parallel/schedule/deal.h"

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

std::string dealt(const std::vector<double>& seconds, const std::vector<std::int64_t>& samples) {
  const Deal deal(ReplicaSeconds{seconds}, samples);
  std::string text;
  for (int i = 0; i < deal.micro_batches(); ++i) text += std::to_string(deal.replica(0, i));
  return text;
}

TEST(Deal, GivesPartsAtEvenDistances) {
  EXPECT_EQ(dealt({1, 1}, std::vector<std::int64_t>(6, 1)), "010101");
  EXPECT_EQ(dealt({1, 3}, std::vector<std::int64_t>(8, 5)), "01000100");
  EXPECT_EQ(dealt({1, kNeverSeconds}, std::vector<std::int64_t>(3, 5)), "000");
}

// 18 samples in 12 micro-batches are 1, 2, 1, 2, …: in turn one replica would have all that are
// larger.
TEST(Deal, CountsSamplesNotMicroBatches) {
  std::vector<std::int64_t> samples;
  for (int i = 0; i < 12; ++i) samples.push_back(1 + i % 2);
  const Deal deal(std::vector<int>{1, 2}, samples);
  EXPECT_LE(std::max(deal.samples(1, 0), deal.samples(1, 1)), 10);
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

// Two that share a stage are as good as one that is twice as fast, but for the ends of the step.
TEST(Deal, ReplicasThatShareAStageShortenTheStep) {
  const std::vector<std::int64_t> samples(16, 1);
  const std::vector<PieceCost> pieces = {{1, 1, 1}, {2, 2, 2}};
  const auto seconds_with = [&](const ReplicaSeconds& replicas) {
    const Deal deal(replicas, samples);
    return simulate(lists_of(deal, Kind::one_f_one_b, replicas), 2, pieces).seconds;
  };
  EXPECT_EQ(seconds_with({{1}, {1}}), 16 * 6 + 3);
  EXPECT_LE(seconds_with({{1}, {1, 1}}), 16 * 3 + 9);
  EXPECT_LE(seconds_with({{1}, {1, 1.5}}), 1.25 * 16 * 3.6) << "unlike ones";
  EXPECT_LE(seconds_with({{4, 4}, {1}}), 16 * 6 + 12);
}

}  // namespace
}  // namespace bimetal::parallel::schedule
