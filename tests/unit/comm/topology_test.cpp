#include "bimetal/comm/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::comm {
namespace {

using ::testing::ElementsAre;
using Sees = std::vector<std::vector<bool>>;

TEST(Topology, RanksThatSeeEachOtherAreTogether) {
  const Sees sees{{1, 0, 1, 0}, {0, 1, 0, 1}, {1, 0, 1, 0}, {0, 1, 0, 1}};
  const auto topology = Topology::from(sees);
  EXPECT_THAT(topology.islands, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(topology.island_of(3), ElementsAre(1, 3));
  EXPECT_FALSE(topology.one_island());
}

TEST(Topology, AllTogether) {
  EXPECT_TRUE(Topology::from(Sees(5, std::vector<bool>(5, true))).one_island());
}

TEST(Topology, NobodySeesAnybody) {
  EXPECT_THAT(Topology::from(Sees(3, std::vector<bool>(3, false))).islands,
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST(Topology, SeeingWithoutBeingSeenIsNotEnough) {
  const Sees sees{{1, 1, 1}, {0, 1, 1}, {1, 1, 1}};
  // 0 sees 1, which does not see 0; 2 and each of them see each other: not a clear company.
  for (const auto& island : Topology::from(sees).islands) EXPECT_EQ(island.size(), 1);
}

}  // namespace
}  // namespace bimetal::comm
