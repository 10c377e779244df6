// A run whose ranks change between two steps: what outlives them is enough to go on, and the end is
// that of one device.

#include "bimetal/train/epoch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/train/epochs.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/trained_model.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TrainerOptions of_one_thread() {
  TrainerOptions options;
  options.worker = job::parse_worker_spec("cpu:threads=1");
  return options;
}

/// The state of one rank's process while others come and go.
struct Process {
  explicit Process(const job::JobConfig& job)
      : options(of_one_thread()),
        run(job, job, options, recorder, choose_place(job, options), test::task_of(job)) {}

  TrainerOptions options;
  test::Recorder recorder;
  Run run;
};

using Processes = std::vector<std::unique_ptr<Process>>;

Processes make_processes(const job::JobConfig& job, int count) {
  Processes processes;
  for (int i = 0; i < count; ++i) processes.push_back(std::make_unique<Process>(job));
  return processes;
}

/// An epoch of the processes from `first` on.
void make_epoch(Processes& processes, std::size_t first, const std::function<void(Epoch&)>& body) {
  bimetal::testing::run_ranks(
      static_cast<int>(processes.size() - first), [&](int rank, comm::Group group) {
        Epoch epoch(processes[first + static_cast<std::size_t>(rank)]->run, std::move(group));
        body(epoch);
      });
}

void train_steps(Epoch& epoch, int steps) {
  for (int i = 0; i < steps; ++i) ASSERT_TRUE(epoch.next_step());
  epoch.hand_over();
}

class Epochs : public ::testing::Test {
 protected:
  Epochs() : images_(300, 40), job_(test::small_job(images_)) {
    job_.train.optimizer = "adam";
    job_.train.learning_rate = 0.01;
    job_.checkpoint.dir = (folder_ / "one").string();
    expected_ = test::parameters_of(test::run_job(job_, 1).recorders[0].checkpoints.back());
    job_.checkpoint.dir = (folder_ / "many").string();
  }

  double difference(const Process& process) const {
    return test::relative_difference(expected_,
                                     test::parameters_of(process.recorder.checkpoints.back()));
  }

  const test::TemporaryFolder folder_;
  const test::SyntheticImages images_;
  job::JobConfig job_;
  checkpoint::TensorMap expected_;
};

TEST_F(Epochs, WhoIsLeftGoesOnAndEndsAsOneDeviceWould) {
  auto processes = make_processes(job_, 3);
  make_epoch(processes, 0, [](Epoch& epoch) { train_steps(epoch, 7); });
  make_epoch(processes, 1, [](Epoch& epoch) { train_steps(epoch, 4); });  // beyond an epoch's end
  progress::Report report;
  make_epoch(processes, 2, [&](Epoch& epoch) { report = epoch.train(); });

  const auto& last = *processes[2];
  EXPECT_TRUE(last.run.done());
  EXPECT_LT(difference(last), 1e-12);
  EXPECT_EQ(report.world_size, 1);
  ASSERT_THAT(report.workers, SizeIs(3));
  std::int64_t samples = 0;
  for (const auto& worker : report.workers) samples += worker.samples;
  EXPECT_EQ(samples, 2 * 300);
  EXPECT_EQ(report.workers[0].rank, 2);  // those still here come first
  EXPECT_THAT(last.recorder.steps, SizeIs(20));
  EXPECT_EQ(last.recorder.steps.back().shares, (std::vector<std::int64_t>{0, 0, 32}));
}

TEST_F(Epochs, WhatHasLeftAStepUnfinishedTakesNothingWithIt) {
  auto processes = make_processes(job_, 3);
  // No handing over: as where a rank is lost between two steps.
  make_epoch(processes, 0, [](Epoch& epoch) {
    for (int i = 0; i < 5; ++i) epoch.next_step();
  });
  make_epoch(processes, 1, [](Epoch& epoch) { epoch.train(); });
  EXPECT_LT(difference(*processes[1]), 1e-12);
}

// Two have trained; the third is new, and the second one missed the last step.
TEST_F(Epochs, WhoIsNewOrBehindTakesTheRunFromTheFurthest) {
  auto processes = make_processes(job_, 3);
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    Epoch epoch(processes[static_cast<std::size_t>(rank)]->run, std::move(group));
    for (int i = 0; i < 6; ++i) epoch.next_step();
  });
  bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
    Epoch(processes[0]->run, group).next_step();
    prepare(processes[2]->run, group);
  });
  EXPECT_FALSE(processes[2]->run.learnt.begun);
  std::swap(processes[0], processes[2]);  // it need not be rank 0
  bimetal::testing::run_ranks(3, [&](int rank, comm::Group group) {
    auto& run = processes[static_cast<std::size_t>(rank)]->run;
    even_out(run, group);
    EXPECT_EQ(run.learnt.state.step, 7);
    EXPECT_THAT(run.journal->members, SizeIs(2));
    Epoch(run, group).train();
  });
  EXPECT_LT(difference(*processes[0]), 1e-12);
}

// It has missed that another one came; both have made as many steps.
TEST_F(Epochs, WhoWasAwayHearsOfThoseWhoCame) {
  auto processes = make_processes(job_, 3);
  const auto between = [&](std::vector<std::size_t> members, const auto& body) {
    bimetal::testing::run_ranks(static_cast<int>(members.size()), [&](int rank, comm::Group group) {
      auto& run = processes[members[static_cast<std::size_t>(rank)]]->run;
      even_out(run, group);
      body(run, group);
    });
  };
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    Epoch epoch(processes[static_cast<std::size_t>(rank)]->run, std::move(group));
    for (int i = 0; i < 5; ++i) epoch.next_step();
  });
  between({0, 2},
          [](train::Run& run, comm::Group group) { const Epoch epoch(run, std::move(group)); });
  between({0, 1, 2}, [](train::Run& run, comm::Group group) {
    EXPECT_THAT(run.journal->members, SizeIs(3));
    Epoch(run, std::move(group)).train();
  });
  EXPECT_LT(difference(*processes[0]), 1e-12);
}

// It was through with a step that the others then made again without it.
TEST_F(Epochs, WhoWasAwayMayBeFurtherThanThoseWhoKnowMore) {
  for (const int level : {0, 1}) {
    job_.zero.level = level;
    job_.checkpoint.dir = (folder_ / ("away" + std::to_string(level))).string();
    auto processes = make_processes(job_, 3);
    make_epoch(processes, 0, [](Epoch& epoch) { train_steps(epoch, 4); });
    auto& away = processes[2]->run.learnt.state;
    away.step += 1;
    processes[0]->run.journal->journal.add_change({.step = 4, .lost = {"one"}});
    processes[1]->run.journal->journal.add_change({.step = 4, .lost = {"one"}});
    bimetal::testing::run_ranks(3, [&](int rank, comm::Group group) {
      auto& run = processes[static_cast<std::size_t>(rank)]->run;
      even_out(run, group, level > 0);
      EXPECT_EQ(run.learnt.state.step, level == 0 ? 5 : 4);
      EXPECT_THAT(run.journal->journal.changes(), SizeIs(1));
    });
  }
}

// It has thrown in a save that others were through with.
TEST_F(Epochs, WhatOneOwesAllDoAgain) {
  job_.parallel.timeout_s = 5;
  for (const int level : {0, 1}) {
    job_.zero.level = level;
    job_.checkpoint.dir = (folder_ / ("owed" + std::to_string(level))).string();
    auto processes = make_processes(job_, 2);
    make_epoch(processes, 0, [](Epoch& epoch) { train_steps(epoch, 4); });
    processes[1]->run.save_owed = true;
    bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
      auto& run = processes[static_cast<std::size_t>(rank)]->run;
      even_out(run, group, level > 0);
      Epoch(run, group).train();
      EXPECT_TRUE(run.done());
    });
  }
}

TEST_F(Epochs, WhatALostRankWasSavingIsSavedAgain) {
  auto processes = make_processes(job_, 2);
  make_epoch(processes, 0, [](Epoch& epoch) {
    while (epoch.next_step()) {
    }
  });
  EXPECT_EQ(processes[1]->run.saved_step, 20);
  processes[0].reset();                              // waits for its copies
  std::filesystem::remove_all(job_.checkpoint.dir);  // as of rank 0, killed before it was through
  bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
    even_out(processes[1]->run, group);
    Epoch(processes[1]->run, group).train();
  });
  EXPECT_LT(difference(*processes[1]), 1e-12);
}

TEST_F(Epochs, NewcomersAloneHaveNothingToGoOnWith) {
  auto processes = make_processes(job_, 2);
  for (auto& process : processes) process->options.doors = {{"127.0.0.1", 1}};
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    auto& run = processes[static_cast<std::size_t>(rank)]->run;
    EXPECT_THROW(even_out(run, group), NothingToGoOnWith);
  });
}

// One of them had made its model already when a third one was lost, and the last is new.
TEST_F(Epochs, WhoeverIsLeftOfAStartBeginsWithNewcomers) {
  auto processes = make_processes(job_, 3);
  auto& learnt = processes[1]->run.learnt;
  make_whole(job_, 3, processes[1]->run.task, processes[1]->run.place, learnt);
  learnt.begun = true;
  processes[2]->options.doors = {{"127.0.0.1", 1}};
  bimetal::testing::run_ranks(3, [&](int rank, comm::Group group) {
    auto& run = processes[static_cast<std::size_t>(rank)]->run;
    even_out(run, group);
    Epoch(run, group).train();
  });
  EXPECT_LT(difference(*processes[0]), 1e-12);
}

TEST_F(Epochs, LostShardsThatNobodyHasSavedEndTheRun) {
  job_.zero.level = 1;
  auto processes = make_processes(job_, 2);
  make_epoch(processes, 0, [](Epoch& epoch) { epoch.next_step(); });
  std::filesystem::remove_all(job_.checkpoint.dir);
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    auto& run = processes[static_cast<std::size_t>(rank)]->run;
    EXPECT_THROW(even_out(run, group, rank == 1), NothingToGoOnWith);
  });
}

TEST_F(Epochs, ALaterOneDoesNotMakeAModelToCountIt) {
  auto processes = make_processes(job_, 2);
  make_epoch(processes, 0, [](Epoch& epoch) { train_steps(epoch, 2); });
  auto& run = processes[1]->run;
  double elements = 0;
  for (const auto& parameter : run.learnt.model.parameters()) {
    elements += static_cast<double>(parameter.numel());
  }
  EXPECT_EQ(run.elements, elements);
  run.elements = 1e15;  // enough for memory to be planned, if anybody believes it
  progress::Report report;
  make_epoch(processes, 1, [&](Epoch& epoch) { report = epoch.train(); });
  EXPECT_GT(report.workers[0].memory.planned, 0);
}

TEST_F(Epochs, ShardsGoOnFromTheCheckpointOfTheirLastStep) {
  for (const int level : {1, 3}) {
    job_.zero.level = level;
    job_.checkpoint.dir = (folder_ / std::to_string(level)).string();
    auto processes = make_processes(job_, 3);
    make_epoch(processes, 0, [](Epoch& epoch) { train_steps(epoch, 7); });
    make_epoch(processes, 1, [](Epoch& epoch) { epoch.train(); });
    EXPECT_EQ(processes[1]->run.learnt.state.step, 20);
    const auto whole = folder_ / ("whole" + std::to_string(level));
    checkpoint::consolidate_checkpoint(processes[1]->recorder.checkpoints.back(), whole);
    EXPECT_LT(test::relative_difference(expected_, test::parameters_of(whole)), 1e-12);
  }
}

// It was stopped as others let a newcomer in, and comes back with what it had then.
TEST_F(Epochs, ShardsOfOneThatIsBehindGoOnFromTheLastCheckpoint) {
  job_.zero.level = 1;
  auto processes = make_processes(job_, 3);
  make_epoch(processes, 0, [](Epoch& epoch) { train_steps(epoch, 3); });
  make_epoch(processes, 1, [](Epoch& epoch) { train_steps(epoch, 4); });
  std::rotate(processes.begin(), processes.begin() + 1, processes.end());  // the newcomer is the
                                                                           // last
  bimetal::testing::run_ranks(3, [&](int rank, comm::Group group) {
    auto& run = processes[static_cast<std::size_t>(rank)]->run;
    even_out(run, group);
    Epoch(run, group).train();
  });
  const auto whole = folder_ / "whole";
  checkpoint::consolidate_checkpoint(processes[0]->recorder.checkpoints.back(), whole);
  EXPECT_LT(test::relative_difference(expected_, test::parameters_of(whole)), 1e-12);
}

TEST_F(Epochs, ShardsThatNobodyHasSavedAreMissed) {
  job_.zero.level = 1;
  job_.checkpoint.dir.clear();
  auto processes = make_processes(job_, 2);
  make_epoch(processes, 0, [](Epoch& epoch) { train_steps(epoch, 2); });
  try {
    make_epoch(processes, 1, [](Epoch&) {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_THAT(error.what(), HasSubstr("after step 2"));
  }
}

}  // namespace
}  // namespace bimetal::train
