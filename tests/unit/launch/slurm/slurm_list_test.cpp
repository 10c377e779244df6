#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "bimetal/base/error.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::launch {
namespace {

using ::testing::ElementsAre;

TEST(SlurmNodeList, OneName) {
  EXPECT_THAT(expand_node_list("gpu1"), ElementsAre("gpu1"));
  EXPECT_THAT(expand_node_list("a,b-2.local"), ElementsAre("a", "b-2.local"));
}

TEST(SlurmNodeList, RangesKeepTheirZeros) {
  EXPECT_THAT(expand_node_list("node[01-03,07],gpu1"),
              ElementsAre("node01", "node02", "node03", "node07", "gpu1"));
  EXPECT_THAT(expand_node_list("n[9-11]"), ElementsAre("n9", "n10", "n11"));
  EXPECT_THAT(expand_node_list("n[099-101]-ib"), ElementsAre("n099-ib", "n100-ib", "n101-ib"));
}

TEST(SlurmNodeList, SeveralBracketsMultiply) {
  EXPECT_THAT(expand_node_list("r[1-2]n[5,7]"), ElementsAre("r1n5", "r1n7", "r2n5", "r2n7"));
}

TEST(SlurmNodeList, RefusesWhatIsNone) {
  for (const auto* text :
       {"", "a,,b", "n[1-", "n[]", "n[a-b]", "n[3-1]", "n]1", "n[1-2", "n[-3]", "n[0-99999999]"}) {
    EXPECT_THROW(expand_node_list(text), Error) << text;
  }
}

// Each would fill the memory, or the stack.
TEST(SlurmNodeList, RefusesWhatNoClusterIs) {
  std::string brackets = "n", many;
  for (int i = 0; i < 100'000; ++i) brackets += "[1]";
  for (int i = 0; i < 50; ++i) many += fmt::format("{}n{}[1-200000]", i > 0 ? "," : "", i);
  for (const auto& text : {brackets, many, "n[" + std::string(100'000, '0') + "1-9]",
                           std::string("n[1-200000,1-200000]")}) {
    EXPECT_THROW(expand_node_list(text), Error) << text.substr(0, 30);
  }
}

TEST(SlurmTasksPerNode, CountsAndRepeats) {
  EXPECT_THAT(expand_tasks_per_node("4(x2),1"), ElementsAre(4, 4, 1));
  EXPECT_THAT(expand_tasks_per_node("2"), ElementsAre(2));
  for (const auto* text : {"", "0", "2(x", "2(x0)", "x", "2(x99999999)", "2(y3)"}) {
    EXPECT_THROW(expand_tasks_per_node(text), Error) << text;
  }
}

}  // namespace
}  // namespace bimetal::launch
