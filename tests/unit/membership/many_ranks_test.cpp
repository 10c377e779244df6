// Jobs of many ranks in a simulated world (bench/simulation): that they start, add up, lose a rank
// and go on, and how many messages that takes.

#include "simulation/many_ranks.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace simulation {
namespace {

std::vector<Phase> phases_of(int ranks, int victim, bool by_power = false) {
  JobOptions options;
  options.ranks = ranks;
  options.victim = victim;
  options.by_power = by_power;
  options.long_bytes = 0;
  return simulate_job(options);
}

const Phase& phase(const std::vector<Phase>& all, const std::string& name) {
  for (const auto& one : all) {
    if (one.name == name) return one;
  }
  throw std::runtime_error("no phase \"" + name + "\"");
}

TEST(ManyRanks, GoOnWhoeverIsKilled) {
  for (const int victim : {0, 1, 19}) {
    const auto all = phases_of(20, victim);
    EXPECT_LT(phase(all, "a loss, until all know").seconds, 0.1) << victim;
    EXPECT_LT(phase(all, "the new epoch").seconds, 2) << victim;
  }
}

TEST(ManyRanks, NoticeAMachineThatIsOff) {
  const auto all = phases_of(20, 5, true);
  // Nobody says so: it is silent for a second.
  EXPECT_GT(phase(all, "a loss, until all know").seconds, 0.9);
  EXPECT_LT(phase(all, "a loss, until all know").seconds, 2);
}

// Five times as many ranks: 1.5 times as many digits.
TEST(ManyRanks, MessagesOfEachGrowWithTheLogarithm) {
  const auto few = phases_of(32, 1), many = phases_of(160, 1);
  ASSERT_EQ(few.size(), many.size());
  for (std::size_t i = 0; i < few.size(); ++i) {
    EXPECT_LT(many[i].messages, 2 * few[i].messages + 5) << few[i].name;
    EXPECT_LT(many[i].connections, 2 * few[i].connections + 5) << few[i].name;
  }
}

TEST(ManyRanks, MeasureTheirLinksWithoutAConnectionForEachPair) {
  JobOptions options;
  options.ranks = 100;
  options.long_bytes = std::size_t{300} << 10;
  options.links.bytes_per_s = 12.5e6;  // on which it shows soon how fast they are
  const auto all = simulate_job(options);
  EXPECT_LT(phase(all, "first all-reduce, long").connections, 14);
}

// A door hears 128 at a time: the others are hung up on, and are not lost.
TEST(ManyRanks, MoreThanADoorHearsAtOnceGoOn) {
  const auto all = phases_of(200, 1);
  EXPECT_LT(phase(all, "the new epoch").seconds, 1);
}

}  // namespace
}  // namespace simulation
