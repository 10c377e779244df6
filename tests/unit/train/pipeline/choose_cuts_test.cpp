#include "bimetal/train/pipeline/choose_cuts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/train/measure/unit_measure.h"
#include "bimetal/train/pipeline/stage_run.h"
#include "bimetal/train/replicas.h"
#include "support/errors.h"
#include "unit/train/pipeline/row_task.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;

/// The cut of twelve equal units for a rank and one that takes three times as long.
std::size_t cut_for(int micro_batches) {
  job::JobConfig job;
  job.mesh.stages = 2;
  std::vector<std::vector<std::size_t>> begins(2);
  std::vector<plan::ModelFacts> facts(2);
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    test::RowTask task;
    task.before = [time = std::chrono::milliseconds(rank == 0 ? 5 : 15)](std::int64_t) {
      std::this_thread::sleep_for(time);
    };
    progress::Observer observer;
    const auto at = static_cast<std::size_t>(rank);
    facts[at] = measure_units(job.train, task, {.timed = Timed::passes, .at_once = 16}).value();
    group.barrier().wait();
    begins[at] =
        choose_cuts(job, group, {.stages = 2}, task,
                    {.facts = facts, .at_once = 16, .micro_batches = micro_batches}, observer)
            .begins;
  });
  EXPECT_EQ(begins[0], begins[1]);
  return begins[0].at(1);
}

TEST(ChooseCuts, OneAfterTheOtherTheSlowRankGetsNoMoreThanItMust) {
  EXPECT_EQ(cut_for(1), 11u);
}

std::string refusal_of(const job::JobConfig& job, int ranks) {
  return text_of(ErrorCode::InvalidArgument, [&] { test::run_job(job, ranks); });
}

TEST(ChooseCuts, RefusesMicroBatchesWithoutSamples) {
  const test::SyntheticImages images(64, 32);
  job::JobConfig job = test::small_job(images);
  job.model.name = "mlp";
  job.train.steps = 1;
  job.mesh.stages = 2;
  job.mesh.micro_batches = 16;
  EXPECT_EQ(refusal_of(job, 4), "");
  job.mesh.micro_batches = 17;
  EXPECT_THAT(refusal_of(job, 4), HasSubstr("take 16 at most, or a train.global_batch of at least "
                                            "34"));
  job.mesh.micro_batches = 14;
  job.mesh.schedule = "interleaved";
  job.mesh.chunks = 1;
  job.train.global_batch = 25;
  EXPECT_THAT(refusal_of(job, 4), HasSubstr("take 12 at most")) << "of 13 samples";
}

// A caller that makes a mesh of workers, or a plan, knows the number for mesh.replicas = "auto".
TEST(ChooseCuts, WhatReplicasComeToIsRefusedInTheWordsOfTheKeys) {
  job::JobConfig job;
  job.mesh.stages = 2;
  job.mesh.tensor = 2;
  job.mesh.stage_tensor = {1, 2};
  job.mesh.schedule = "interleaved";
  require_possible(job, shape_of(job.mesh, 3));
  EXPECT_THAT(
      text_of(ErrorCode::Unsupported, [&] { require_possible(job, shape_of(job.mesh, 6)); }),
      HasSubstr("take \"1f1b\", or mesh.replicas = 1"));
}

/// The losses of its evaluations: they tell whether activations were compressed on the way.
std::vector<double> losses_of(const job::JobConfig& job, int ranks) {
  return test::run_job(job, ranks).recorders[0].losses;
}

TEST(StageRun, ShortensActivationsAsTheJobSays) {
  const test::SyntheticImages images(128, 64);
  job::JobConfig job = test::small_job(images);
  job.model.name = "mlp";
  job.mesh.stages = 2;
  job.mesh.cuts = {1};
  job.mesh.micro_batches = 4;
  const auto whole = losses_of(job, 2);
  ASSERT_FALSE(whole.empty());
  job.compression.activations = "int8";
  EXPECT_EQ(losses_of(job, 2), whole) << "ranks that share memory have no slow link";
  job.compression.links = "all";
  const auto shortened = losses_of(job, 2);
  ASSERT_EQ(shortened.size(), whole.size());
  EXPECT_NE(whole.back(), 0);
  EXPECT_GT(std::abs(shortened.back() / whole.back() - 1), 1e-8);
  EXPECT_LT(std::abs(shortened.back() / whole.back() - 1), 0.02);
}

TEST(StageRun, WithoutStagesThereIsNothingToShorten) {
  const test::SyntheticImages images(64, 32);
  job::JobConfig job = test::small_job(images);
  job.train.epochs = 1;
  const auto whole = losses_of(job, 1);
  job.mesh.stages = job::kAutoStages;
  job.compression.activations = "int8";
  job.compression.links = "all";
  for (const int ranks : {1, 2}) {  // of a model with one unit
    const auto alike = losses_of(job, ranks);
    ASSERT_EQ(alike.size(), whole.size());
    EXPECT_NEAR(alike.back(), whole.back(), 1e-9) << ranks;
  }
}

}  // namespace
}  // namespace bimetal::train
