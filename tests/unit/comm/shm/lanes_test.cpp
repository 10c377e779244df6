// How data are cut into lanes and chunks.
#include "bimetal/comm/shm/lanes.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "bimetal/comm/algorithms/chain.h"
#include "bimetal/comm/transport.h"

namespace bimetal::comm {
namespace {

TEST(Lanes, CoverEveryByteOnce) {
  for (const std::size_t bytes : {0ul, 4ul, 64ul, 100ul, 4096ul, 1000003ul, 64ul << 20}) {
    for (const int number : {1, 2, 3, 7, 64}) {
      const Lanes lanes{bytes, number};
      std::size_t end = 0;
      for (int j = 0; j < number; ++j) {
        const Range lane = lanes.lane(j);
        EXPECT_EQ(lane.begin, end);
        EXPECT_LE(lane.bytes, lanes.length());
        end += lane.bytes;
      }
      EXPECT_EQ(end, bytes);
      EXPECT_GE(lanes.chunks() * lanes.chunk_bytes(), lanes.length());
    }
  }
}

TEST(Lanes, AChunkOfEveryLaneFitsOneSlot) {
  for (int number = 1; number <= kMaxTeam; ++number) {
    const Lanes lanes{std::size_t{1} << 30, number};
    EXPECT_GT(lanes.chunk_bytes(), 0u);
    EXPECT_EQ(lanes.chunk_bytes() % kLine, 0u);
    EXPECT_LE(lanes.chunk_bytes() * static_cast<std::size_t>(number), ShmTeam::slot_bytes());
  }
}

// All ranks of a team take the same steps in each call, and at least one.
TEST(Lanes, NothingIsStillAChunk) {
  EXPECT_EQ((Lanes{0, 3}.chunks()), 1u);
}

TEST(Chain, IsForLongMessagesOfThreeRanksAndMore) {
  EXPECT_FALSE(chain_suits(std::size_t{1} << 30, 2));
  EXPECT_FALSE(chain_suits(1000, 3));
  EXPECT_TRUE(chain_suits(std::size_t{1} << 20, 3));
  EXPECT_FALSE(chain_suits(std::size_t{1} << 20, 100));
}

TEST(Island, TheVariableFillsWhatTheProgramLeavesOpen) {
  unsetenv("BIMETAL_ISLAND");
  EXPECT_EQ(island_for(""), "");
  setenv("BIMETAL_ISLAND", "left", 1);
  EXPECT_EQ(island_for(""), "left");
  EXPECT_EQ(island_for("right"), "right");
  unsetenv("BIMETAL_ISLAND");
}

}  // namespace
}  // namespace bimetal::comm
