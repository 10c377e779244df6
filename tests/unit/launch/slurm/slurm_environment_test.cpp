#include "bimetal/launch/slurm/slurm_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "unit/launch/variables.h"

namespace bimetal::launch {
namespace {

using ::testing::HasSubstr;

// As srun -N 3 -n 5 sets them on the second node.
const VariableMap kSrun = {{"SLURM_JOB_ID", "4711"},
                           {"SLURM_STEP_ID", "2"},
                           {"SLURM_STEP_NUM_TASKS", "5"},
                           {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                           {"SLURM_STEP_NODELIST", "node[07-09]"},
                           {"SLURM_NODELIST", "node[01-20]"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_PROCID", "3"},
                           {"SLURM_LOCALID", "1"}};

std::optional<SlurmTask> read(const VariableMap& map) {
  return slurm_task(lookup_in(map));
}

std::string complaint(const VariableMap& map) {
  return complaint_of([&] { read(map); });
}

TEST(SlurmTask, ReadsWhatSrunSets) {
  const auto task = read(kSrun);
  ASSERT_TRUE(task);
  EXPECT_EQ(task->place.rank, 3);
  EXPECT_EQ(task->place.world_size, 5);
  EXPECT_EQ(task->place.local_rank, 1);
  EXPECT_EQ(task->place.local_world_size, 2);
  EXPECT_EQ(task->place.group_rank, 1);
  EXPECT_EQ(task->place.group_world_size, 3);
  EXPECT_EQ(task->master.host, "node07");
  EXPECT_EQ(task->job_id, "slurm-4711.2");
  const auto env = rank_in(*task);
  EXPECT_EQ(env.store, StoreOwner::RankZero);
  EXPECT_FALSE(env.on_one_machine());
}

TEST(SlurmTask, AllTasksOfAStepMeetAtOnePortAndStepsAtDifferentOnes) {
  const auto port = read(kSrun)->master.port;
  EXPECT_EQ(read(with(kSrun, "SLURM_PROCID", "2"))->master.port, port);
  EXPECT_NE(read(with(kSrun, "SLURM_STEP_ID", "3"))->master.port, port);
  EXPECT_NE(read(with(kSrun, "SLURM_JOB_ID", "4712"))->master.port, port);
  for (const char* job : {"1", "4294967295", "67108863"}) {
    EXPECT_GE(read(with(kSrun, "SLURM_JOB_ID", job))->master.port, 15000);
    EXPECT_LT(read(with(kSrun, "SLURM_JOB_ID", job))->master.port, 30000);
  }
}

TEST(SlurmTask, TheUserMayChooseWhereToMeet) {
  const auto task = read(with(with(kSrun, "MASTER_ADDR", "10.1.1.1"), "MASTER_PORT", "29500"));
  EXPECT_EQ(task->master, (net::Endpoint{"10.1.1.1", 29500}));
}

TEST(SlurmTask, OneNodeMeetsOnLoopback) {
  auto map = with(kSrun, "SLURM_STEP_TASKS_PER_NODE", "5");
  map["SLURM_NODEID"] = "0";
  EXPECT_EQ(read(map)->master.host, "127.0.0.1");
  EXPECT_TRUE(rank_in(*read(map)).on_one_machine());
}

TEST(SlurmTask, NeitherBatchScriptsNorShellsAreTasks) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read(without(kSrun, "SLURM_STEP_ID")));
  EXPECT_FALSE(read(without(kSrun, "SLURM_STEP_NUM_TASKS")));
  EXPECT_FALSE(read(with(kSrun, "SLURM_STEP_ID", "4294967291")));  // the batch script
  EXPECT_FALSE(read(with(kSrun, "SLURM_STEP_ID", "4294967290")));  // salloc's shell
}

TEST(SlurmTask, NamesWhatIsMissingOrBad) {
  EXPECT_THAT(complaint(without(kSrun, "SLURM_LOCALID")), HasSubstr("SLURM_LOCALID"));
  EXPECT_THAT(complaint(with(kSrun, "SLURM_PROCID", "5")),
              HasSubstr("SLURM_PROCID=5 is not a whole number from 0 to 4"));
  EXPECT_THAT(complaint(with(kSrun, "SLURM_LOCALID", "2")), HasSubstr("SLURM_LOCALID=2"));
  EXPECT_THAT(complaint(with(kSrun, "SLURM_STEP_NODELIST", "node[1-")), HasSubstr("node[1-"));
  auto map = without(without(kSrun, "SLURM_STEP_NODELIST"), "SLURM_NODELIST");
  EXPECT_THAT(complaint(map), HasSubstr("SLURM_NODELIST"));
}

}  // namespace
}  // namespace bimetal::launch
