#include "bimetal/parallel/server/ledger.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "bimetal/base/error.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;

LedgerOptions small(Consistency consistency, std::int64_t staleness = 0) {
  LedgerOptions options;
  options.consistency = consistency;
  options.staleness = staleness;
  options.dataset_size = 100;
  options.global_batch = 32;
  options.epochs = 2;
  return options;
}

/// Time that the test moves.
struct Clock {
  TimePoint now{};
  TimePoint after(int ms) { return now += milliseconds(ms); }
};

TEST(Ledger, OneWorkerIsGivenWholeStepsInTheSamplersOrder) {
  Ledger ledger(small(Consistency::sync));
  Clock clock;
  ledger.add_worker(0, 0);
  std::vector<std::int64_t> counts;
  while (const auto lease = ledger.grant(0, clock.now)) {
    counts.push_back(lease->count);
    EXPECT_EQ(lease->denominator, lease->count);
    EXPECT_FALSE(ledger.grant(0, clock.now)) << "sync: one step at a time";
    EXPECT_TRUE(ledger.complete(lease->id, true, clock.after(10)));
    const auto updates = ledger.take_updates();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_EQ(updates[0].leases, std::vector<std::uint64_t>{lease->id});
    EXPECT_EQ(updates[0].learning_rate_scale, 1);
  }
  EXPECT_EQ(counts, (std::vector<std::int64_t>{32, 32, 32, 4, 32, 32, 32, 4}));
  EXPECT_TRUE(ledger.paused());
  EXPECT_TRUE(ledger.at_end());
  EXPECT_EQ(ledger.steps_done(), 8);
}

TEST(Ledger, SharesFollowTheRates) {
  Ledger ledger(small(Consistency::sync));
  Clock clock;
  ledger.add_worker(0, 300);
  ledger.add_worker(1, 100);
  const auto fast = ledger.grant(0, clock.now), slow = ledger.grant(1, clock.now);
  EXPECT_EQ(fast->count, 24);
  EXPECT_EQ(slow->count, 8);
  EXPECT_EQ(fast->denominator, 32);
  EXPECT_EQ(slow->offset, 24);
  // The slow one turns out to be faster than it said.
  ledger.complete(slow->id, true, clock.after(20));
  EXPECT_EQ(ledger.rate(1), 250);
  EXPECT_TRUE(ledger.take_updates().empty());
  EXPECT_FALSE(ledger.grant(1, clock.now));
  ledger.complete(fast->id, true, clock.after(60));
  const auto updates = ledger.take_updates();
  ASSERT_EQ(updates.size(), 1u);
  EXPECT_EQ(updates[0].leases, (std::vector<std::uint64_t>{fast->id, slow->id}));
}

TEST(Ledger, ALostWorkersSamplesGoToOthersAndItsResultIsRefused) {
  Ledger ledger(small(Consistency::sync));
  Clock clock;
  ledger.add_worker(0, 100);
  ledger.add_worker(1, 100);
  const auto a = ledger.grant(0, clock.now), b = ledger.grant(1, clock.now);
  ledger.complete(b->id, true, clock.after(100));
  EXPECT_FALSE(ledger.grant(1, clock.now));
  ledger.remove_worker(0);
  const auto again = ledger.grant(1, clock.now);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->offset, a->offset);
  EXPECT_EQ(again->count, a->count);
  EXPECT_FALSE(ledger.complete(a->id, true, clock.now));
  EXPECT_TRUE(ledger.complete(again->id, true, clock.after(100)));
  EXPECT_EQ(ledger.take_updates().at(0).leases, (std::vector<std::uint64_t>{again->id, b->id}));
  EXPECT_EQ(ledger.samples_repeated(), 16);
}

TEST(Ledger, BoundedLetsAWorkerRunAheadBySoManySteps) {
  auto options = small(Consistency::bounded, 2);
  options.dataset_size = 1000;
  Ledger ledger(options);
  Clock clock;
  ledger.add_worker(0, 100);
  ledger.add_worker(1, 100);
  const auto held = ledger.grant(1, clock.now);  // never ends
  std::vector<std::int64_t> steps;
  for (int i = 0; i < 10; ++i) {
    const auto lease = ledger.grant(0, clock.now);
    if (!lease) break;
    steps.push_back(lease->step);
    ledger.complete(lease->id, true, clock.after(100));
  }
  // Its own share of the steps 1 to 3, then what the other one has not taken; no further.
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 2, 3}));
  EXPECT_TRUE(ledger.take_updates().empty());
  EXPECT_TRUE(ledger.complete(held->id, true, clock.now));
  EXPECT_EQ(ledger.take_updates().size(), 3u);
  EXPECT_EQ(ledger.steps_done(), 3);
}

TEST(Ledger, AsyncMakesAnUpdateOfEachLease) {
  Ledger ledger(small(Consistency::async));
  Clock clock;
  ledger.add_worker(0, 300);
  ledger.add_worker(1, 100);
  const auto slow = ledger.grant(1, clock.now);
  for (int i = 0; i < 3; ++i) {
    const auto fast = ledger.grant(0, clock.now);
    ASSERT_TRUE(fast);
    EXPECT_EQ(fast->denominator, fast->count);
    ledger.complete(fast->id, true, clock.after(80));
    const auto updates = ledger.take_updates();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_EQ(updates[0].learning_rate_scale, static_cast<double>(fast->count) / 32);
  }
  EXPECT_EQ(ledger.steps_done(), 0) << "steps end in order";
  ledger.complete(slow->id, true, clock.now);
  EXPECT_EQ(ledger.steps_done(), 1);
}

TEST(Ledger, AnOverdueLeaseIsGivenToAnotherAndLowersTheRate) {
  Ledger ledger(small(Consistency::bounded, 1));
  Clock clock;
  ledger.add_worker(0, 1000);
  ledger.add_worker(1, 1000);
  const auto stuck = ledger.grant(0, clock.now);
  EXPECT_TRUE(ledger.overdue(clock.after(1000), 3, milliseconds(2000)).empty());
  const auto late = ledger.overdue(clock.after(2000), 3, milliseconds(2000));
  ASSERT_EQ(late, std::vector<std::uint64_t>{stuck->id});
  EXPECT_TRUE(ledger.revoke(stuck->id, clock.now));
  EXPECT_FALSE(ledger.revoke(stuck->id, clock.now));
  EXPECT_LT(ledger.rate(0), 10);
  const auto other = ledger.grant(1, clock.now);
  EXPECT_EQ(other->offset, stuck->offset);
  EXPECT_FALSE(ledger.complete(stuck->id, true, clock.now));
  // However long the second one takes, it is let finish.
  EXPECT_TRUE(ledger.overdue(clock.after(60000), 3, milliseconds(2000)).empty());
  EXPECT_TRUE(ledger.complete(other->id, true, clock.now));
}

TEST(Ledger, GradientsThatAreNoNumbersAreLeftOut) {
  Ledger ledger(small(Consistency::sync));
  Clock clock;
  ledger.add_worker(0, 100);
  ledger.add_worker(1, 100);
  const auto a = ledger.grant(0, clock.now), b = ledger.grant(1, clock.now);
  ledger.complete(a->id, false, clock.after(10));
  ledger.complete(b->id, true, clock.now);
  EXPECT_EQ(ledger.take_updates().at(0).leases, std::vector<std::uint64_t>{b->id});
  EXPECT_EQ(ledger.take_ended_steps().at(0).total, 32);
}

TEST(Ledger, PausesWhereItWasAsked) {
  auto options = small(Consistency::bounded, 3);
  options.pause_every = 3;
  options.pause_at_epochs = true;
  options.last_step = 7;
  Ledger ledger(options);
  Clock clock;
  ledger.add_worker(0, 100);
  std::vector<std::int64_t> pauses;
  while (!ledger.at_end() || !ledger.paused()) {
    if (ledger.paused()) {
      pauses.push_back(ledger.steps_done());
      ledger.resume();
    }
    const auto lease = ledger.grant(0, clock.now);
    ASSERT_TRUE(lease);
    ledger.complete(lease->id, true, clock.after(10));
  }
  EXPECT_EQ(pauses, (std::vector<std::int64_t>{3, 4, 6}));
  EXPECT_EQ(ledger.steps_done(), 7);
  EXPECT_EQ(ledger.epoch(), 1);
  EXPECT_EQ(ledger.offset(), 96);
}

TEST(Ledger, GoesOnFromACheckpoint) {
  auto options = small(Consistency::sync);
  options.steps_done = 5;
  options.epoch = 1;
  options.offset = 32;
  Ledger ledger(options);
  ledger.add_worker(0, 0);
  const auto lease = ledger.grant(0, {});
  EXPECT_EQ(lease->step, 6);
  EXPECT_EQ(lease->epoch, 1);
  EXPECT_EQ(lease->offset, 32);
}

TEST(Ledger, RefusesWhatMakesNoSense) {
  auto options = small(Consistency::sync);
  options.global_batch = 0;
  EXPECT_THROW(Ledger{options}, Error);
  options = small(Consistency::sync);
  options.offset = 101;
  EXPECT_THROW(Ledger{options}, Error);
  EXPECT_THROW(consistency_of("eventual"), Error);
  EXPECT_FALSE(Ledger(small(Consistency::sync)).grant(3, {})) << "an unknown worker";
}

// Workers come, go, stall and return at random: what the updates hold is each sample once.
class LedgerFuzz : public ::testing::TestWithParam<Consistency> {};

TEST_P(LedgerFuzz, EverySampleIsInTheUpdatesOncePerEpoch) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    auto options = small(GetParam(), 2);
    options.pause_at_epochs = seed % 2 == 0;
    Ledger ledger(options);
    Clock clock;
    std::map<std::uint64_t, SampleLease> known;
    std::map<int, std::vector<std::uint64_t>> held;
    std::map<std::int64_t, std::multiset<std::int64_t>> visited;
    const auto use_updates = [&] {
      for (const auto& update : ledger.take_updates()) {
        for (const auto id : update.leases) {
          for (std::int64_t i = 0; i < known.at(id).count; ++i) {
            visited[known.at(id).epoch].insert(known.at(id).offset + i);
          }
        }
      }
    };
    int next_worker = 0;
    for (int round = 0; round < 10000 && !(ledger.at_end() && ledger.paused()); ++round) {
      clock.after(static_cast<int>(random() % 50));
      if (ledger.paused()) ledger.resume();
      if (held.size() < 2 || random() % 40 == 0) {
        ledger.add_worker(next_worker, 0);
        held[next_worker++] = {};
      }
      const auto worker = std::next(held.begin(), static_cast<long>(random() % held.size()));
      if (random() % 20 == 0) {
        ledger.remove_worker(worker->first);
        held.erase(worker);
      } else if (!worker->second.empty()) {
        if (random() % 10 == 0) ledger.revoke(worker->second.back(), clock.now);
        ledger.complete(worker->second.back(), true, clock.now);
        worker->second.pop_back();
      } else if (const auto lease = ledger.grant(worker->first, clock.now)) {
        known[lease->id] = *lease;
        worker->second.push_back(lease->id);
      }
      use_updates();
    }
    ASSERT_TRUE(ledger.at_end() && ledger.paused()) << "seed " << seed;
    for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
      ASSERT_EQ(visited[epoch].size(), 100u) << "seed " << seed;
      for (std::int64_t i = 0; i < 100; ++i) ASSERT_EQ(visited[epoch].count(i), 1u);
    }
  }
}

std::string mode_name(const ::testing::TestParamInfo<Consistency>& mode) {
  const char* const names[] = {"Sync", "Async", "Bounded"};
  return names[static_cast<std::size_t>(mode.param)];
}

INSTANTIATE_TEST_SUITE_P(Modes, LedgerFuzz,
                         ::testing::Values(Consistency::sync, Consistency::async,
                                           Consistency::bounded),
                         mode_name);

}  // namespace
}  // namespace bimetal::parallel::server
