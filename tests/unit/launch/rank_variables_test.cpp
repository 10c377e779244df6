#include "bimetal/launch/rank_variables.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "bimetal/launch/rank_environment.h"

namespace bimetal::launch {
namespace {

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
