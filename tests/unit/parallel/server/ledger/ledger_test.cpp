#include "bimetal/parallel/server/ledger/ledger.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "bimetal/base/error.h"
#include "ledger_setting.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;

TEST(Ledger, OneWorkerIsGivenWholeStepsInTheSamplersOrder) {
  auto ledger = ledger_of(small(Consistency::sync), {0});
  Clock clock;
  std::vector<std::int64_t> counts;
  while (const auto lease = ledger.grant(0, clock.now)) {
    counts.push_back(lease->count);
    EXPECT_EQ(lease->denominator, lease->count);
    EXPECT_FALSE(ledger.grant(0, clock.now)) << "sync: one step at a time";
    EXPECT_TRUE(ledger.complete(lease->id, true, 0.01, clock.after(10)));
    const auto updates = ledger.take_updates();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_EQ(updates[0].leases, std::vector<std::uint64_t>{lease->id});
    EXPECT_EQ(updates[0].part, 1);
  }
  EXPECT_EQ(counts, (std::vector<std::int64_t>{32, 32, 32, 4, 32, 32, 32, 4}));
  EXPECT_TRUE(ledger.paused());
  EXPECT_TRUE(ledger.at_end());
  EXPECT_EQ(ledger.steps_done(), 8);
}

/// Sample i of each epoch's order weighs i + 1.
LedgerOptions heavier(Consistency consistency) {
  auto options = small(consistency);
  options.weight = [](std::int64_t, std::int64_t offset, std::int64_t count) {
    return count * (2 * offset + count + 1) / 2;
  };
  return options;
}

TEST(Ledger, LossesAreDividedByTheWeightOfAllOfAStepsSamples) {
  auto ledger = ledger_of(heavier(Consistency::sync), {300, 100});
  Clock clock;
  const auto fast = ledger.grant(0, clock.now), slow = ledger.grant(1, clock.now);
  EXPECT_EQ(fast->weight, 24 * 25 / 2);
  EXPECT_EQ(fast->weight + slow->weight, 32 * 33 / 2);
  EXPECT_EQ(fast->denominator, 32 * 33 / 2);
  EXPECT_EQ(slow->denominator, 32 * 33 / 2);
}

TEST(Ledger, AsynchronousLossesAreDividedByTheWeightOfTheirOwnSamples) {
  auto ledger = ledger_of(heavier(Consistency::async), {300, 100});
  Clock clock;
  const auto fast = ledger.grant(0, clock.now);
  EXPECT_EQ(fast->denominator, fast->weight);
}

TEST(Ledger, ALostWorkersSamplesGoToOthersAndItsResultIsRefused) {
  auto ledger = ledger_of(small(Consistency::sync), {100, 100});
  Clock clock;
  const auto a = ledger.grant(0, clock.now), b = ledger.grant(1, clock.now);
  ledger.complete(b->id, true, 0.01, clock.after(100));
  EXPECT_FALSE(ledger.grant(1, clock.now));
  ledger.remove_worker(0);
  const auto again = ledger.grant(1, clock.now);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->offset, a->offset);
  EXPECT_EQ(again->count, a->count);
  EXPECT_FALSE(ledger.complete(a->id, true, 0.01, clock.now));
  EXPECT_TRUE(ledger.complete(again->id, true, 0.01, clock.after(100)));
  EXPECT_EQ(ledger.take_updates().at(0).leases, (std::vector<std::uint64_t>{again->id, b->id}));
  EXPECT_EQ(ledger.samples_repeated(), 16);
}

TEST(Ledger, AnOverdueLeaseIsGivenToAnother) {
  auto ledger = ledger_of(small(Consistency::bounded, 1), {1000, 1000});
  Clock clock;
  const auto first = ledger.grant(0, clock.now);
  // Its exchange has not been timed yet: on a slow link it may take long.
  EXPECT_TRUE(ledger.overdue(clock.after(5000), 3, milliseconds(2000)).empty());
  ledger.complete(first->id, true, 0.016, clock.now);
  ledger.add_worker(0, speed(1000));
  const auto quick = ledger.grant(0, clock.now);
  ledger.complete(quick->id, true, 0.016, clock.after(20));
  const auto stuck = ledger.grant(0, clock.now);
  EXPECT_TRUE(ledger.overdue(clock.after(1000), 3, milliseconds(2000)).empty());
  const auto late = ledger.overdue(clock.after(2000), 3, milliseconds(2000));
  ASSERT_EQ(late, std::vector<std::uint64_t>{stuck->id});
  EXPECT_TRUE(ledger.revoke(stuck->id));
  EXPECT_FALSE(ledger.revoke(stuck->id));
  const auto other = ledger.grant(1, clock.now);
  EXPECT_EQ(other->offset, stuck->offset);
  EXPECT_FALSE(ledger.complete(stuck->id, true, 0.01, clock.now));
  // However long the second one takes, it is let finish.
  EXPECT_TRUE(ledger.overdue(clock.after(60000), 3, milliseconds(2000)).empty());
  EXPECT_TRUE(ledger.complete(other->id, true, 0.01, clock.now));
}

TEST(Ledger, ALeaseGrantedAheadWaitsItsTurn) {
  auto options = small(Consistency::bounded, 2);
  options.dataset_size = 1000;
  Ledger ledger(options);
  Clock clock;
  ledger.add_worker(0, WorkerSpeed({0.01, 1e-3}));
  const auto first = ledger.grant(0, clock.now);
  EXPECT_FALSE(first->ahead);
  ledger.complete(first->id, true, 0.042, clock.after(42));
  const auto now = ledger.grant(0, clock.now), next = ledger.grant(0, clock.now);
  ASSERT_TRUE(now && next);
  EXPECT_FALSE(now->ahead);
  EXPECT_TRUE(next->ahead);
  EXPECT_EQ(next->step, now->step + 1);
  ledger.complete(now->id, true, 0.042, clock.after(42));
  ledger.complete(next->id, true, 0.042, clock.after(42));
  EXPECT_NEAR(ledger.rate(0), 32 / 0.042, 1) << "the second did not take twice as long";
  // If it holds two leases, the second is overdue only when both should long be done.
  const auto third = ledger.grant(0, clock.now), fourth = ledger.grant(0, clock.now);
  ASSERT_TRUE(third && fourth);
  EXPECT_EQ(ledger.older_than(clock.after(100), milliseconds(99)),
            std::vector<std::uint64_t>{third->id});
  EXPECT_EQ(ledger.overdue(clock.now, 2, milliseconds(10)).size(), 1u);
  EXPECT_EQ(ledger.overdue(clock.after(200), 2, milliseconds(10)).size(), 2u);
}

// Alone, a lease waits for its parameters and for its gradients to arrive; ahead of the end of
// others it hides one of the two.
TEST(Ledger, LeasesAloneAndAheadAreExpectedToTakeWhatTheirKindDoes) {
  auto options = small(Consistency::async);
  options.dataset_size = 10000;
  auto ledger = ledger_of(options, {10000});
  Clock clock;
  const auto alone = ledger.grant(0, clock.now);
  ledger.complete(alone->id, true, 0.01, clock.after(2000));
  for (int i = 0; i < 6; ++i) {
    const auto now = ledger.grant(0, clock.now), next = ledger.grant(0, clock.now);
    ledger.complete(now->id, true, 0.01, clock.after(2000));
    ledger.complete(next->id, true, 0.01, clock.after(500));
  }
  EXPECT_NEAR(ledger.rate(0), 32 / 0.5, 4);
  const auto first = ledger.grant(0, clock.now);
  ledger.grant(0, clock.now);
  EXPECT_TRUE(ledger.overdue(clock.after(5900), 3, milliseconds(1500)).empty());
  EXPECT_EQ(ledger.overdue(clock.after(200), 3, milliseconds(1500)),
            std::vector<std::uint64_t>{first->id});
}

TEST(Ledger, NothingIsGrantedAheadThatOthersCouldDoSooner) {
  auto ledger = ledger_of(small(Consistency::bounded, 0), {1000, 1000});
  EXPECT_TRUE(ledger.grant(0, {}));
  EXPECT_FALSE(ledger.grant(0, {})) << "worker 1's share of the one open step";
  EXPECT_TRUE(ledger.grant(1, {}));
}

TEST(Ledger, AWorkerMayHoldAsManyLeasesAsStalenessAllows) {
  const auto at_once = [](Consistency consistency, std::int64_t staleness, Prefetch prefetch) {
    auto options = small(consistency, staleness);
    options.prefetch = prefetch;
    auto ledger = ledger_of(options, {1000});
    return ledger.leases_at_once(0);
  };
  EXPECT_EQ(at_once(Consistency::sync, 2, Prefetch::on), 1u);
  EXPECT_EQ(at_once(Consistency::bounded, 0, Prefetch::on), 1u);
  EXPECT_EQ(at_once(Consistency::bounded, 1, Prefetch::on), 2u);
  EXPECT_EQ(at_once(Consistency::bounded, 9, Prefetch::on), 4u);
  EXPECT_EQ(at_once(Consistency::async, 0, Prefetch::on), 4u);
  EXPECT_EQ(at_once(Consistency::async, 0, Prefetch::off), 1u);
  EXPECT_EQ(at_once(Consistency::async, 0, Prefetch::automatic), 1u) << "nothing is known yet";
  EXPECT_THROW(prefetch_of("always"), Error);
}

TEST(Ledger, PausesWhereItWasAsked) {
  auto options = small(Consistency::bounded, 3);
  options.pause_every = 3;
  options.pause_at_epochs = true;
  options.last_step = 7;
  auto ledger = ledger_of(options, {100});
  Clock clock;
  std::vector<std::int64_t> pauses;
  while (!ledger.at_end() || !ledger.paused()) {
    if (ledger.paused()) {
      pauses.push_back(ledger.steps_done());
      ledger.resume();
    }
    const auto lease = ledger.grant(0, clock.now);
    ASSERT_TRUE(lease);
    ledger.complete(lease->id, true, 0.01, clock.after(10));
  }
  EXPECT_EQ(pauses, (std::vector<std::int64_t>{3, 4, 6}));
  EXPECT_EQ(ledger.steps_done(), 7);
  EXPECT_EQ(ledger.epoch(), 1);
  EXPECT_EQ(ledger.offset(), 96);
}

TEST(Ledger, AWorkerWithFewSamplesIsNotJudgedByTheExchange) {
  auto options = small(Consistency::sync);
  options.dataset_size = 100000;
  options.global_batch = 1000;
  auto ledger = ledger_of(options, {1000, 100});
  Clock clock;
  // In truth the workers are alike; the exchange takes longer than the second one's computation.
  for (int step = 0; step < 12; ++step) {
    const auto begin = clock.now;
    const auto fast = ledger.grant(0, begin), slow = ledger.grant(1, begin);
    ASSERT_TRUE(fast && slow);
    for (const auto& lease : {*slow, *fast}) {
      const auto compute = milliseconds(lease.count);
      ledger.complete(lease.id, true, static_cast<double>(lease.count) / 1000,
                      begin + compute + milliseconds(150));
      clock.now = std::max(clock.now, begin + compute + milliseconds(150));
    }
  }
  EXPECT_NEAR(ledger.shares(1000).at(1), 500, 50);
}

TEST(Ledger, SamplesOfAWorkerThatFellSilentGoToOneThatWasLeftOut) {
  Ledger ledger(small(Consistency::sync));
  ledger.add_worker(0, WorkerSpeed({10.0, 0.001}));
  ledger.add_worker(1, speed(1000));
  const auto lease = ledger.grant(1, {});
  EXPECT_EQ(lease->count, 32);
  EXPECT_FALSE(ledger.grant(0, {}));
  ledger.revoke(lease->id);
  ledger.set_resting(1, true);
  const auto again = ledger.grant(0, {});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->count, 32);
  ledger.complete(again->id, true, 10.0, {});
  EXPECT_EQ(ledger.grant(0, {})->step, 2) << "it goes on alone";
  ledger.set_resting(1, false);
  EXPECT_EQ(ledger.shares(32).at(1), 32);
}

/// Breaks off at every number of updates and lets another ledger go on from the position that the
/// last update carried: each sample is used once by the two together.
TEST(Ledger, AnotherOneGoesOnFromThePositionOfAnyUpdate) {
  for (const auto consistency : {Consistency::sync, Consistency::async, Consistency::bounded}) {
    for (int updates_before = 0; updates_before < 16; ++updates_before) {
      std::map<std::pair<std::int64_t, std::int64_t>, int> used;
      auto options = small(consistency, 1);
      options.dataset_size = 70;
      int left = updates_before;
      Position reached;
      for (const bool first : {true, false}) {
        Ledger ledger(options);
        Clock clock;
        for (int worker = 0; worker < 3; ++worker)
          ledger.add_worker(worker, speed(100 * (worker + 1)));
        std::map<int, SampleLease> out;
        std::map<std::uint64_t, SampleLease> given;
        while (!first || left > 0) {
          for (const int worker : {2, 0, 1}) {
            if (out.contains(worker)) continue;
            if (const auto lease = ledger.grant(worker, clock.now)) {
              out[worker] = *lease;
              given[lease->id] = *lease;
            }
          }
          if (out.empty()) break;
          const auto done = out.extract(out.begin()->first);
          ledger.complete(done.mapped().id, true, 0.01, clock.after(10));
          for (const auto& update : ledger.take_updates()) {
            if (first && left-- <= 0) break;
            reached = update.after;
            for (const auto id : update.leases) {
              const auto& lease = given[id];
              for (auto i = lease.offset; i < lease.offset + lease.count; ++i) {
                ++used[{lease.epoch, i}];
              }
            }
          }
        }
        if (!first) {
          EXPECT_TRUE(ledger.at_end());
        }
        options.start = reached;
        options.first_lease = 1u << 30;
      }
      EXPECT_EQ(used.size(), 140u) << "broken off after " << updates_before;
      for (const auto& [sample, times] : used) {
        EXPECT_EQ(times, 1) << "sample " << sample.second << " of epoch " << sample.first;
      }
    }
  }
}

TEST(Ledger, RefusesWhatMakesNoSense) {
  auto options = small(Consistency::sync);
  options.global_batch = 0;
  EXPECT_THROW(Ledger{options}, Error);
  options = small(Consistency::sync);
  options.start.offset = 101;
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
        ledger.add_worker(next_worker, speed(0));
        held[next_worker++] = {};
      }
      const auto worker = std::next(held.begin(), static_cast<long>(random() % held.size()));
      if (random() % 20 == 0) {
        ledger.remove_worker(worker->first);
        held.erase(worker);
      } else if (worker->second.size() >= 4 || (!worker->second.empty() && random() % 3 == 0)) {
        if (random() % 10 == 0) ledger.revoke(worker->second.back());
        ledger.complete(worker->second.back(), true, 0.01, clock.now);
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
