#include "bimetal/parallel/server/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <set>

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// Keeps what the coordinator decides.
struct RecordingPort : CoordinatorPort {
  std::map<int, std::deque<Lease>> leases;
  std::vector<std::pair<std::uint64_t, Apply>> applied;
  std::vector<std::uint64_t> dropped;
  std::vector<StepEvent> records;
  void send_lease(int worker, const Lease& lease) override { leases[worker].push_back(lease); }
  void send_apply(std::uint64_t version, const Apply& update) override {
    applied.emplace_back(version, update);
  }
  void send_drop(std::uint64_t lease) override { dropped.push_back(lease); }
  void send_record(const StepEvent& step) override { records.push_back(step); }
};

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest() {
    options_.ledger.dataset_size = 64;
    options_.ledger.global_batch = 32;
    options_.ledger.epochs = 2;
    options_.servers = {0, 1};
    options_.shards = 2;
    options_.max_not_finite = 2;
    options_.join_timeout = seconds(5);
  }

  void begin(int workers) {
    coordinator_.emplace(
        options_, port_, [this](Event event) { events_.push_back(std::move(event)); }, now_);
    for (int i = 0; i < workers; ++i) {
      Join join;
      join.host = "host";
      join.device = "cpu";
      join.samples_per_s = 100;
      numbers_.push_back(coordinator_->admit(join));
    }
    for (const int number : numbers_) coordinator_->ready(number, now_);
  }

  Lease lease_of(int worker) {
    auto& queue = port_.leases[worker];
    EXPECT_FALSE(queue.empty()) << "worker " << worker << " has no work";
    if (queue.empty()) return {};
    const Lease lease = queue.front();
    queue.pop_front();
    return lease;
  }

  void finish(int worker, const Lease& lease, bool finite = true) {
    now_ += milliseconds(100);
    coordinator_->staged(0, lease.id, true, now_);
    coordinator_->staged(1, lease.id, finite, now_);
    coordinator_->done(worker, lease.id, {.version = lease.version, .loss_sum = 1}, now_);
  }

  template <typename Kind>
  std::vector<Kind> events() const {
    std::vector<Kind> found;
    for (const auto& event : events_) {
      if (const auto* kind = std::get_if<Kind>(&event)) found.push_back(*kind);
    }
    return found;
  }

  CoordinatorOptions options_;
  RecordingPort port_;
  std::vector<Event> events_;
  std::vector<int> numbers_;
  TimePoint now_{};
  std::optional<Coordinator> coordinator_;
};

TEST_F(CoordinatorTest, AnUpdateNeedsTheWorkerAndEveryServer) {
  begin(1);
  const auto lease = lease_of(0);
  coordinator_->staged(1, lease.id, true, now_);
  coordinator_->done(0, lease.id, {.loss_sum = 64}, now_);
  EXPECT_TRUE(port_.applied.empty());
  coordinator_->staged(0, lease.id, true, now_);
  ASSERT_EQ(port_.applied.size(), 1u);
  EXPECT_EQ(port_.applied[0].first, 1u);
  const auto steps = events<StepEvent>();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].loss_sum, 64);
  EXPECT_EQ(steps[0].weight, 32);
  EXPECT_EQ(lease_of(0).version, 1u);
}

TEST_F(CoordinatorTest, WhatALostWorkerHasStagedIsDroppedAndLeasedAgain) {
  begin(2);
  const auto kept = lease_of(0), lost = lease_of(1);
  finish(0, kept);
  coordinator_->staged(0, lost.id, true, now_);
  coordinator_->lost(1, "connection reset", now_);
  EXPECT_EQ(port_.dropped, std::vector<std::uint64_t>{lost.id});
  const auto again = lease_of(0);
  EXPECT_EQ(again.offset, lost.offset);
  finish(0, again);
  EXPECT_EQ(port_.applied.at(0).second.leases, (std::vector<std::uint64_t>{kept.id, again.id}));
  EXPECT_THAT(events<NoticeEvent>().at(0).text, HasSubstr("connection reset"));
  EXPECT_EQ(coordinator_->samples_repeated(), lost.count);
}

TEST_F(CoordinatorTest, WhatAWorkerHoldsComesBackBeforeAPause) {
  options_.ledger.consistency = Consistency::async;
  options_.ledger.prefetch = Prefetch::on;
  options_.ledger.pause_at_epochs = true;
  begin(1);
  const auto first = lease_of(0), second = lease_of(0);
  EXPECT_TRUE(port_.leases[0].empty()) << "the epoch has two steps";
  finish(0, first);
  EXPECT_TRUE(events<PauseEvent>().empty());
  finish(0, second);
  ASSERT_EQ(events<PauseEvent>().size(), 1u);
  coordinator_->evaluate(10, now_);
  EXPECT_EQ(port_.leases[0].size(), 1u) << "of test chunks one lease at a time";
  EXPECT_EQ(lease_of(0).work, Work::evaluate);
}

// Else the worker would wait for work, and the job for the worker.
TEST_F(CoordinatorTest, OneThatHasReportedALeaseIsFreeWhenThatIsTakenBack) {
  begin(1);
  const auto lease = lease_of(0);
  coordinator_->staged(0, lease.id, true, now_);
  coordinator_->done(0, lease.id, {}, now_);  // a server has stopped, and has not staged it
  now_ += seconds(61);
  coordinator_->heard(0, now_);
  coordinator_->tick(now_);
  EXPECT_EQ(port_.dropped, std::vector<std::uint64_t>{lease.id});
  const auto again = lease_of(0);
  EXPECT_EQ(again.offset, lease.offset);
  finish(0, again);
  EXPECT_EQ(port_.applied.size(), 1u);
}

TEST_F(CoordinatorTest, ASilentWorkerIsPassedOverAndComesBack) {
  begin(2);
  const auto stuck = lease_of(1), mine = lease_of(0);
  finish(0, mine);
  now_ += seconds(4);
  coordinator_->heard(0, now_);
  coordinator_->tick(now_);
  const auto again = lease_of(0);
  EXPECT_EQ(again.offset, stuck.offset);
  coordinator_->heard(1, now_);
  coordinator_->tick(now_);
  EXPECT_THAT(events<NoticeEvent>().back().text, HasSubstr("is back"));
  finish(1, stuck);  // too late
  EXPECT_TRUE(port_.applied.empty());
  finish(0, again);
  EXPECT_EQ(port_.applied.size(), 1u);
  EXPECT_FALSE(port_.leases[1].empty()) << "it has new work";
}

TEST_F(CoordinatorTest, GradientsThatAreNoNumbersEndTheJobAfterSomeTimes) {
  begin(1);
  finish(0, lease_of(0), false);
  EXPECT_TRUE(events<FailedEvent>().empty());
  ASSERT_EQ(port_.applied.size(), 1u);
  EXPECT_TRUE(port_.applied[0].second.leases.empty());
  finish(0, lease_of(0), false);
  ASSERT_EQ(events<FailedEvent>().size(), 1u);
  EXPECT_EQ(events<FailedEvent>()[0].error.code(), ErrorCode::NotFinite);
  EXPECT_EQ(events<FailedEvent>()[0].error.rank(), 0);
  EXPECT_TRUE(port_.leases[0].empty()) << "nothing more is handed out";
}

TEST_F(CoordinatorTest, StalenessIsCountedAndShrinksTheStep) {
  options_.ledger.consistency = Consistency::async;
  options_.staleness_aware = true;
  begin(2);
  const auto old = lease_of(1);
  for (int i = 0; i < 3; ++i) finish(0, lease_of(0));
  finish(1, old);
  const auto figures = coordinator_->figures();
  EXPECT_EQ(figures[0].staleness_max, 0);
  EXPECT_EQ(figures[1].staleness_max, 3);
  const auto& update = port_.applied.back().second;
  EXPECT_DOUBLE_EQ(update.learning_rate_scale, 1.0 / 3);
  EXPECT_DOUBLE_EQ(update.part, static_cast<double>(old.count) / 32);
}

TEST_F(CoordinatorTest, AWorkerWhoseGradientsComeLateGetsParametersOfLater) {
  options_.ledger.consistency = Consistency::async;
  begin(2);
  const auto old = lease_of(1);
  EXPECT_EQ(old.steps_ahead, 0);
  double part = 0;  // of a step that the other one does meanwhile
  for (int i = 0; i < 3; ++i) {
    const auto lease = lease_of(0);
    EXPECT_EQ(lease.steps_ahead, 0);
    part += static_cast<double>(lease.count) / 32;
    finish(0, lease);
  }
  finish(1, old);
  EXPECT_DOUBLE_EQ(lease_of(1).steps_ahead, part);
}

TEST_F(CoordinatorTest, NobodyGetsParametersOfLaterWhereThatIsNotWanted) {
  options_.ledger.consistency = Consistency::async;
  options_.weight_prediction = false;
  begin(2);
  const auto old = lease_of(1);
  for (int i = 0; i < 3; ++i) finish(0, lease_of(0));
  finish(1, old);
  EXPECT_EQ(lease_of(1).steps_ahead, 0);
}

TEST_F(CoordinatorTest, EvaluatesEveryChunkOnceAlthoughAWorkerIsLost) {
  options_.ledger.pause_at_epochs = true;
  options_.ledger.epochs = 1;
  begin(2);
  while (events<PauseEvent>().empty()) {
    for (const int worker : {0, 1}) {
      if (!port_.leases[worker].empty()) finish(worker, lease_of(worker));
    }
  }
  coordinator_->evaluate(10, now_);
  std::multiset<std::int64_t> chunks;
  coordinator_->lost(1, "killed", now_);
  port_.leases[1].clear();
  while (events<EvaluatedEvent>().empty()) {
    const auto lease = lease_of(0);
    ASSERT_EQ(lease.work, Work::evaluate);
    for (std::int64_t i = 0; i < lease.count; ++i) chunks.insert(lease.offset + i);
    coordinator_->done(0, lease.id,
                       {.metrics = {2.0 * static_cast<double>(lease.count)}, .weight = lease.count},
                       now_);
  }
  EXPECT_EQ(chunks, (std::multiset<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(events<EvaluatedEvent>()[0].metrics, std::vector<double>{20});
}

TEST_F(CoordinatorTest, EndsWhenNoWorkerComes) {
  begin(0);
  now_ += seconds(4);
  coordinator_->tick(now_);
  EXPECT_TRUE(events<FailedEvent>().empty());
  now_ += seconds(2);
  coordinator_->tick(now_);
  EXPECT_EQ(events<FailedEvent>().at(0).error.code(), ErrorCode::Timeout);
}

// Its last lease is on its way on other connections when it has gone.
TEST_F(CoordinatorTest, WhatAWorkerHasFinishedBeforeItLeavesCounts) {
  begin(2);
  const auto mine = lease_of(0), last = lease_of(1);
  finish(0, mine);
  coordinator_->staged(0, last.id, true, now_);
  coordinator_->done(1, last.id, {}, now_);
  coordinator_->lost(1, "", now_);
  EXPECT_TRUE(port_.dropped.empty());
  coordinator_->staged(1, last.id, true, now_);
  EXPECT_EQ(port_.applied.at(0).second.leases, (std::vector<std::uint64_t>{mine.id, last.id}));
  EXPECT_EQ(lease_of(0).count, 32) << "the next step is the other's alone";
}

TEST_F(CoordinatorTest, StopsAtTheLastWholeStepWhenNobodyIsLeft) {
  begin(2);
  finish(0, lease_of(0));
  finish(1, lease_of(1));
  const auto half = lease_of(0);
  finish(0, half);
  coordinator_->request_pause();
  coordinator_->lost(0, "", now_);
  coordinator_->tick(now_);
  EXPECT_TRUE(events<PauseEvent>().empty());
  coordinator_->lost(1, "killed", now_);
  coordinator_->tick(now_);
  ASSERT_EQ(events<PauseEvent>().size(), 1u);
  EXPECT_EQ(events<PauseEvent>()[0].steps_done, 1);
  EXPECT_EQ(events<PauseEvent>()[0].offset, 32);
}

TEST_F(CoordinatorTest, AnotherWorkersLeaseIsRefused) {
  begin(2);
  EXPECT_THROW(coordinator_->done(0, lease_of(1).id, {}, now_), Error);
}

TEST_F(CoordinatorTest, AServerWithoutACopyTakesTheJobAlong) {
  begin(1);
  coordinator_->server_lost(1, "killed", now_);
  const auto failed = events<FailedEvent>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].error.code(), ErrorCode::PeerLost);
  EXPECT_EQ(failed[0].error.rank(), 1);
}

TEST_F(CoordinatorTest, AnotherOneGoesOnWhereTheParametersAre) {
  begin(1);
  finish(0, lease_of(0));
  const auto interrupted = lease_of(0);
  ASSERT_EQ(port_.records.size(), 1u);
  const auto last = port_.applied.back();

  options_.ledger.start = last.second.after;
  options_.ledger.first_lease = 1000;
  options_.version = last.first;
  options_.workers = port_.records[0].workers;
  coordinator_.emplace(
      options_, port_, [this](Event event) { events_.push_back(std::move(event)); }, now_);
  Join join;
  join.number = 0;
  join.host = "host";
  EXPECT_EQ(coordinator_->admit(join), 0);
  coordinator_->ready(0, now_);
  // The worker brings first what the first coordinator wanted of it, then what this one does.
  port_.dropped.clear();
  coordinator_->done(0, interrupted.id, {}, now_);
  EXPECT_EQ(port_.dropped, std::vector<std::uint64_t>{interrupted.id});
  const auto again = lease_of(0);
  EXPECT_TRUE(port_.leases[0].empty()) << "one lease at a time";
  EXPECT_EQ(again.offset, interrupted.offset);
  EXPECT_GT(static_cast<std::uint32_t>(again.id), 1000u);
  finish(0, again);
  EXPECT_EQ(port_.applied.back().first, 2u);
  EXPECT_EQ(coordinator_->figures()[0].updates, 2);
}

}  // namespace
}  // namespace bimetal::parallel::server
