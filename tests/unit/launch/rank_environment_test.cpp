#include "bimetal/launch/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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

std::optional<RankEnvironment> read(const VariableMap& map) {
  return rank_from_environment(lookup_in(map));
}

std::string complaint(const VariableMap& map) {
  return complaint_of([&] { read(map); });
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
  EXPECT_THAT(complaint(with(kTorchrun, "RANK", "4")),
              HasSubstr("RANK=4 is not a whole number from 0 to 3"));
  EXPECT_THAT(complaint(with(kTorchrun, "WORLD_SIZE", "2x")), HasSubstr("WORLD_SIZE=2x"));
  EXPECT_THAT(complaint(with(kTorchrun, "WORLD_SIZE", "0")), HasSubstr("WORLD_SIZE=0"));
  EXPECT_THAT(complaint(with(kTorchrun, "MASTER_PORT", "65536")), HasSubstr("1 to 65535"));
  EXPECT_THAT(complaint(with(kTorchrun, "LOCAL_RANK", "-1")), HasSubstr("LOCAL_RANK=-1"));
  EXPECT_THAT(complaint(with(with(kTorchrun, "LOCAL_RANK", "2"), "LOCAL_WORLD_SIZE", "2")),
              HasSubstr("LOCAL_WORLD_SIZE=2 is not a whole number from 3"));
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

}  // namespace
}  // namespace bimetal::launch
