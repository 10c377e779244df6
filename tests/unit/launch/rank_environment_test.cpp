// Reads the environment: as torchrun sets it, and as srun does.

#include "bimetal/launch/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bimetal/launch/rank_places.h"
#include "unit/launch/variables.h"

namespace bimetal::launch {
namespace {

using ::testing::HasSubstr;

const VariableMap kTorchrun = {{"RANK", "2"},
                               {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "0"},
                               {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "10.0.0.7"},
                               {"MASTER_PORT", "29500"}};

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

std::optional<RankEnvironment> read(const VariableMap& map) {
  return rank_from_environment(lookup_in(map));
}

std::optional<SlurmTask> task_of(const VariableMap& map) {
  return slurm_task(lookup_in(map));
}

std::string complaint(const VariableMap& map) {
  return complaint_of([&] { map.contains("RANK") ? void(read(map)) : void(task_of(map)); });
}

TEST(RankEnvironment, IsNothingWithoutRank) {
  EXPECT_FALSE(read(without(kTorchrun, "RANK")));
}

TEST(RankEnvironment, ReadsWhatTorchrunSets) {
  const auto env = read(kTorchrun);
  ASSERT_TRUE(env);
  EXPECT_EQ(env->rank, 2);
  EXPECT_EQ(env->world_size, 4);
  EXPECT_EQ(env->local_rank, 0);
  EXPECT_EQ(env->local_world_size, 2);
  EXPECT_EQ(env->master, (net::Endpoint{"10.0.0.7", 29500}));
  EXPECT_EQ(env->store, StoreOwner::RankZero);
  EXPECT_FALSE(env->on_one_machine());
}

TEST(RankEnvironment, KnowsWhoServesTheStore) {
  EXPECT_EQ(read(with(kTorchrun, "BIMETAL_STORE", "launcher"))->store, StoreOwner::Launcher);
  EXPECT_EQ(read(with(kTorchrun, "BIMETAL_STORE", "parameter_server"))->store,
            StoreOwner::ParameterServer);
  EXPECT_EQ(read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"))->store,
            StoreOwner::TorchAgent);
  EXPECT_EQ(read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False"))->store,
            StoreOwner::RankZero);
}

TEST(RankEnvironment, NamesTheMissingVariable) {
  for (const auto* name : {"WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(complaint(without(kTorchrun, name)), HasSubstr(std::string("but ") + name)) << name;
    EXPECT_THAT(complaint(with(kTorchrun, name, "")), HasSubstr(std::string("but ") + name));
  }
}

TEST(RankEnvironment, NamesTheBadVariableAndItsValue) {
  const auto third = with(kTorchrun, "LOCAL_RANK", "2");
  for (const auto& [map, name, value, part] :
       std::vector<std::tuple<VariableMap, const char*, const char*, const char*>>{
           {kTorchrun, "RANK", "4", "RANK=4 is not a whole number from 0 to 3"},
           {kTorchrun, "WORLD_SIZE", "2x", "WORLD_SIZE=2x"},
           {kTorchrun, "WORLD_SIZE", "0", "WORLD_SIZE=0"},
           {kTorchrun, "MASTER_PORT", "65536", "1 to 65535"},
           {kTorchrun, "LOCAL_RANK", "-1", "LOCAL_RANK=-1"},
           {third, "LOCAL_WORLD_SIZE", "2", "LOCAL_WORLD_SIZE=2 is not a whole number from 3"},
           {kSrun, "SLURM_LOCALID", "", "SLURM_LOCALID"},
           {kSrun, "SLURM_PROCID", "5", "SLURM_PROCID=5 is not a whole number from 0 to 4"},
           {kSrun, "SLURM_LOCALID", "2", "SLURM_LOCALID=2"},
           {kSrun, "SLURM_STEP_NODELIST", "node[1-", "node[1-"},
           {without(kSrun, "SLURM_STEP_NODELIST"), "SLURM_NODELIST", "", "SLURM_NODELIST"}}) {
    EXPECT_THAT(complaint(*value == 0 ? without(map, name) : with(map, name, value)),
                HasSubstr(part));
  }
}

TEST(RankEnvironment, AWorldOfOneNeedsNoLocalRank) {
  const auto env = read(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1"}});
  ASSERT_TRUE(env);
  EXPECT_EQ(env->local_rank, 0);
  EXPECT_TRUE(env->on_one_machine());
}

TEST(RankEnvironment, LoopbackMeansThatAllRanksAreHere) {
  auto map = without(with(kTorchrun, "MASTER_ADDR", "127.0.0.1"), "LOCAL_WORLD_SIZE");
  EXPECT_EQ(read(map)->local_world_size, 4);
  map["MASTER_ADDR"] = "node7";
  EXPECT_EQ(read(map)->local_world_size, 1);
}

TEST(RankEnvironment, ARestartedJobKnowsItsAttempt) {
  auto map = with(kTorchrun, "TORCHELASTIC_RUN_ID", "run-7");
  map["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_EQ(read(map)->job_id, "run-7");
  EXPECT_EQ(read(map)->attempt, 3);
}

TEST(RankEnvironment, OneThatComesLaterKnowsTheDoor) {
  EXPECT_EQ(read(kTorchrun)->door, "");
  EXPECT_EQ(read(with(kTorchrun, "BIMETAL_DOOR", "10.0.0.8:40112"))->door, "10.0.0.8:40112");
}

TEST(SlurmTask, ReadsWhatSrunSets) {
  const auto task = task_of(kSrun);
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
  const auto port = task_of(kSrun)->master.port;
  EXPECT_EQ(task_of(with(kSrun, "SLURM_PROCID", "2"))->master.port, port);
  EXPECT_NE(task_of(with(kSrun, "SLURM_STEP_ID", "3"))->master.port, port);
  EXPECT_NE(task_of(with(kSrun, "SLURM_JOB_ID", "4712"))->master.port, port);
  for (const char* job : {"1", "4294967295", "67108863"}) {
    EXPECT_GE(task_of(with(kSrun, "SLURM_JOB_ID", job))->master.port, 15000);
    EXPECT_LT(task_of(with(kSrun, "SLURM_JOB_ID", job))->master.port, 30000);
  }
}

TEST(SlurmTask, TheUserMayChooseWhereToMeet) {
  const auto task = task_of(with(with(kSrun, "MASTER_ADDR", "10.1.1.1"), "MASTER_PORT", "29500"));
  EXPECT_EQ(task->master, (net::Endpoint{"10.1.1.1", 29500}));
}

TEST(SlurmTask, OneNodeMeetsOnLoopback) {
  auto map = with(kSrun, "SLURM_STEP_TASKS_PER_NODE", "5");
  map["SLURM_NODEID"] = "0";
  EXPECT_EQ(task_of(map)->master.host, "127.0.0.1");
  EXPECT_TRUE(rank_in(*task_of(map)).on_one_machine());
}

TEST(SlurmTask, NeitherBatchScriptsNorShellsAreTasks) {
  EXPECT_FALSE(task_of({}));
  EXPECT_FALSE(task_of(without(kSrun, "SLURM_STEP_ID")));
  EXPECT_FALSE(task_of(without(kSrun, "SLURM_STEP_NUM_TASKS")));
  EXPECT_FALSE(task_of(with(kSrun, "SLURM_STEP_ID", "4294967291")));  // the batch script
  EXPECT_FALSE(task_of(with(kSrun, "SLURM_STEP_ID", "4294967290")));  // salloc's shell
}

std::map<std::string, std::string> variables_of(int host, int local_rank) {
  const std::vector<int> counts = {1, 3, 2};
  const auto pairs = rank_variables(place_of(counts, host, local_rank));
  return {pairs.begin(), pairs.end()};
}

TEST(RankVariables, CountRanksHostAfterHost) {
  auto variables = variables_of(1, 2);
  EXPECT_EQ(variables["RANK"], "3");
  EXPECT_EQ(variables["WORLD_SIZE"], "6");
  EXPECT_EQ(variables["LOCAL_RANK"], "2");
  EXPECT_EQ(variables["LOCAL_WORLD_SIZE"], "3");
  EXPECT_EQ(variables["NODE_RANK"], "1");
  EXPECT_EQ(variables["GROUP_WORLD_SIZE"], "3");
}

TEST(RankVariables, CrossRanksGoOverTheHostsThatHaveThem) {
  EXPECT_EQ(variables_of(2, 0)["HOROVOD_CROSS_RANK"], "2");
  EXPECT_EQ(variables_of(2, 0)["HOROVOD_CROSS_SIZE"], "3");
  EXPECT_EQ(variables_of(2, 1)["HOROVOD_CROSS_RANK"], "1");
  EXPECT_EQ(variables_of(2, 1)["HOROVOD_CROSS_SIZE"], "2");
  EXPECT_EQ(variables_of(1, 2)["HOROVOD_CROSS_SIZE"], "1");
}

TEST(RankVariables, AreWhatARankReads) {
  auto variables = variables_of(2, 1);
  for (const auto& [name, value] : master_variables("10.0.0.7", 29500)) variables[name] = value;
  const auto env = rank_from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
  ASSERT_TRUE(env);
  EXPECT_EQ(env->rank, 5);
  EXPECT_EQ(env->local_world_size, 2);
  EXPECT_EQ(env->master, (net::Endpoint{"10.0.0.7", 29500}));
  EXPECT_EQ(env->store, StoreOwner::RankZero);
  EXPECT_EQ(env->attempt, 0);
}

}  // namespace
}  // namespace bimetal::launch
