#include "bimetal/base/nearest_name.h"

#include <gtest/gtest.h>

#include <array>
#include <string_view>

namespace bimetal {
namespace {

constexpr std::array<std::string_view, 5> kKeys = {"epochs", "steps", "seed", "global_batch",
                                                   "learning_rate"};

TEST(NearestName, FindsTheNameBehindEachKindOfSlip) {
  EXPECT_EQ(nearest_name("learning_rat", kKeys), "learning_rate");  // a letter missing
  EXPECT_EQ(nearest_name("stepps", kKeys), "steps");                // one too many
  EXPECT_EQ(nearest_name("sead", kKeys), "seed");                   // a wrong one
  EXPECT_EQ(nearest_name("epohcs", kKeys), "epochs");               // neighbours swapped
  EXPECT_EQ(nearest_name("Global-Batch", kKeys), "global_batch");   // another spelling
  EXPECT_EQ(nearest_name("seed", kKeys), "seed");
}

TEST(NearestName, ASwapCostsLessThanTwoReplacements) {
  constexpr std::array<std::string_view, 2> names = {"bxc", "ab"};
  EXPECT_EQ(nearest_name("ba", names), "ab");
}

TEST(NearestName, TheFirstOfEqualsWins) {
  constexpr std::array<std::string_view, 2> names = {"cat", "bat"};
  EXPECT_EQ(nearest_name("rat", names), "cat");
}

TEST(NearestName, TakesEmptyWordsAndLists) {
  EXPECT_EQ(nearest_name("", kKeys), "seed");
  EXPECT_EQ(nearest_name("seed", {}), "");
}

}  // namespace
}  // namespace bimetal
