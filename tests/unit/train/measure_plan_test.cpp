#include "bimetal/train/measure/measure_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/plan/link_probe.h"
#include "support/forked_child.h"
#include "support/thread_ranks.h"
#include "unit/data/text/token_files.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

MeasuredPlan measure_as(int rank, comm::Group group, const job::JobConfig& job, double speed,
                        const std::string& precision = "") {
  TrainerOptions options;
  options.worker = job::parse_worker_spec("cpu:threads=1");
  options.worker.speed = speed;
  options.worker.precision = precision;
  options.local_rank = rank;
  options.local_world_size = group.size();
  options.host_name = "host";
  progress::Observer observer;
  return measure_plan(job, group, options, observer);
}

TEST(MeasurePlan, EveryRankArrivesAtTheSamePlan) {
  const test::SyntheticImages images(256, 32);
  job::JobConfig job = test::small_job(images);
  job.train.global_batch = 128;
  std::vector<MeasuredPlan> plans(2);
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    plans[static_cast<std::size_t>(rank)] = measure_as(rank, group, job, rank == 0 ? 1.0 : 0.1);
  });
  const MeasuredPlan& plan = plans[0];
  ASSERT_EQ(plan.devices.size(), 2u);
  EXPECT_EQ(plan.devices[0].device, "cpu");
  EXPECT_EQ(plan.devices[1].worker, "cpu:threads=1,speed=0.1");
  EXPECT_GT(plan.devices[1].matmul_float32_gflops, 0.0);
  EXPECT_EQ(plan.input.bucket_bytes.size(), 1u);  // softmax regression: 10 × (64 + 1) doubles
  EXPECT_EQ(plan.input.bucket_bytes[0], 5200u);
  EXPECT_GT(plan.input.link.bytes_per_s, 0.0);
  // A tenth of the speed: far more than noise.
  EXPECT_GT(plan.input.workers[1].cost.seconds(128), plan.input.workers[0].cost.seconds(128));

  for (const auto& each : plans) {
    const auto& facts = each.mesh_input.facts;
    ASSERT_EQ(facts.size(), 2u);
    EXPECT_GT(facts[0].update_s, 0);
    EXPECT_GT(facts[1].update_s, facts[0].update_s);
    EXPECT_GE(facts[0].split_inputs + facts[0].split_weights, 1);
    EXPECT_EQ(facts[1].update_s, plans[0].mesh_input.facts[1].update_s);
  }

  for (const auto& each : plans) {
    ASSERT_TRUE(each.mesh.asked && each.mesh.asked->choice);
    EXPECT_EQ(each.mesh.asked->choice->scheme, plan::Scheme::Data);
    EXPECT_EQ(each.mesh.asked->choice->devices(), 2);
    EXPECT_FALSE(each.mesh.lower) << "of float64";
  }

  ASSERT_EQ(plan.plan.predictions.size(), plans[1].plan.predictions.size());
  EXPECT_EQ(plan.plan.best, plans[1].plan.best);
  for (std::size_t i = 0; i < plan.plan.predictions.size(); ++i) {
    EXPECT_EQ(plan.plan.predictions[i].shares, plans[1].plan.predictions[i].shares);
    EXPECT_EQ(plan.plan.predictions[i].step_s, plans[1].plan.predictions[i].step_s);
  }
}

// If some worker is clearly faster in it, on any machine.
TEST(MeasurePlan, TellsWhatBfloat16WouldGive) {
  const test::SyntheticImages images(256, 32);
  job::JobConfig job = test::small_job(images);
  job.train.dtype = "float32";
  const auto measured = [&](const std::string& precision, const std::string& of_workers = "") {
    job.train.precision = precision;
    std::vector<MeasuredPlan> plans(2);
    bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
      plans[static_cast<std::size_t>(rank)] = measure_as(rank, group, job, 1.0, of_workers);
    });
    EXPECT_EQ(plans[0].mesh.lower.has_value(), plans[1].mesh.lower.has_value());
    return plans[0];
  };
  const auto open = measured("float32");
  const bool faster = std::ranges::any_of(open.devices, [](const RankDevice& device) {
    EXPECT_TRUE(device.may_be_lower);
    EXPECT_GT(device.matmul_half_gflops, 0);
    return device.matmul_half_gflops > 1.1 * device.matmul_float32_gflops;
  });
  ASSERT_EQ(open.mesh.lower.has_value(), faster);
  if (faster) {
    EXPECT_EQ(open.mesh.lower->name, "bfloat16");
    EXPECT_TRUE(open.mesh.lower->best.fits());
  }
  EXPECT_FALSE(measured("bfloat16").mesh.lower) << "named by the job";
  const auto stated = measured("float32", "float32");
  EXPECT_FALSE(stated.mesh.lower) << "named by the workers";
  EXPECT_FALSE(stated.devices[0].may_be_lower);
}

TEST(MeasurePlan, RefusesAMeshThatCannotBe) {
  const test::SyntheticImages images(64, 32);
  job::JobConfig job = test::small_job(images);
  job.mesh.stages = 3;
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    EXPECT_THROW(measure_as(rank, group, job, 1.0), Error);
  });
}

/// A plan for two workers.
MeasuredPlan measure_meshes_on(const job::JobConfig& job, const std::string& worker) {
  MeasuredPlan first;
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    TrainerOptions options;
    options.worker = job::parse_worker_spec(worker);
    options.local_rank = rank;
    options.local_world_size = group.size();
    options.host_name = "host";
    progress::Observer observer;
    auto plan = measure_meshes(job, group, options, observer);
    if (rank == 0) first = std::move(plan);
  });
  return first;
}

TEST(MeasurePlan, PartsAreForWhoMayHaveThem) {
  const test::SyntheticImages images(64, 32);
  job::JobConfig job = test::small_job(images);
  job.train.dtype = "float32";
  job.mesh.tensor = job::kAutoTensor;
  job.mesh.tensor_parts = "speed";
  EXPECT_TRUE(measure_meshes_on(job, "cpu:threads=1").mesh_input.parts);
  EXPECT_FALSE(measure_meshes_on(job, "cpu:threads=1,precision=bfloat16").mesh_input.parts);
  EXPECT_EQ(measure_meshes_on(job, "cpu:threads=1").mesh_input.level_in_parts, 3);
  for (job.zero.level = 1; job.zero.level < 4; ++job.zero.level) {
    EXPECT_TRUE(measure_meshes_on(job, "cpu:threads=1").mesh_input.parts) << job.zero.level;
  }
  job.zero = {};
  job.mesh.sequence_parallel = true;
  EXPECT_EQ(measure_meshes_on(job, "cpu:threads=1").mesh_input.level_in_parts, 0);
}

/// Eight blocks of 12.6 MB, which are made one by one.
job::JobConfig job_of_eight_blocks(const std::filesystem::path& folder) {
  for (const char* name : {"train.tokens", "test.tokens"}) {
    const auto bytes = data::test::token_bytes(data::test::counted(200));
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  job::JobConfig job;
  job.model.name = "gpt2";
  job.model.layers = 8;
  job.model.width = 512;
  job.model.heads = 8;
  job.model.context = 16;
  job.data.name = "tokens";
  job.data.path = folder.string();
  job.train.global_batch = 4;
  job.train.dtype = "float32";
  job.mesh.tensor = job::kAutoTensor;
  job.mesh.tensor_parts = "speed";
  return job;
}

// Two models would be needed to measure parts, of which there is room for less.
TEST(MeasurePlan, WhatIsTooLargeForPartsIsMeasuredUnitByUnit) {
  const test::TemporaryFolder folder;
  const auto job = job_of_eight_blocks(folder.path());
  bimetal::test::ForkedChild child([&] {
    int result = 1;
    bimetal::testing::run_ranks(1, [&](int, comm::Group group) {
      TrainerOptions options;
      options.worker = job::parse_worker_spec("cpu:threads=1,memory=160MiB");
      options.host_name = "host";
      progress::Observer observer;
      const auto plan = measure_meshes(job, group, options, observer);
      const auto& facts = plan.memory_input.ranks.front().facts;
      result = plan.mesh_input.parts ? 2 : facts.units.empty() ? 3 : facts.by_units ? 0 : 4;
    });
    return result;
  });
  EXPECT_EQ(child.wait(), 0);
}

TEST(MeasurePlan, WeightsOfAMeshsReplicasAreNotThoseOfItsRanks) {
  const test::SyntheticImages images(64, 32);
  job::JobConfig job = test::small_job(images);
  job.mesh.tensor = 2;
  job.zero.level = 1;
  job.zero.weights = {1};
  EXPECT_EQ(measure_meshes_on(job, "cpu:threads=1").memory_input.asked.level, 1);
}

TEST(LinkProbe, ThereIsNoLinkInAWorldOfOne) {
  bimetal::testing::run_ranks(1, [](int, comm::Group group) {
    EXPECT_EQ(plan::probe_link(group, 2 << 20).bytes_per_s, 0.0);
  });
}

}  // namespace
}  // namespace bimetal::train
