#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/comm/fabric.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::comm {
namespace {

class TransportChoice : public ::testing::Test {
 protected:
  TransportChoice() {
    if (const char* value = std::getenv("BIMETAL_TRANSPORT")) before_ = value;
    unsetenv("BIMETAL_TRANSPORT");
  }
  ~TransportChoice() override {
    unsetenv("BIMETAL_TRANSPORT");
    if (before_) setenv("BIMETAL_TRANSPORT", before_->c_str(), 1);
  }

 private:
  std::optional<std::string> before_;
};

TEST_F(TransportChoice, TheVariableFillsWhatTheProgramLeavesOpen) {
  EXPECT_EQ(transport_for(Transport::automatic), Transport::automatic);
  setenv("BIMETAL_TRANSPORT", "tcp", 1);
  EXPECT_EQ(transport_for(Transport::automatic), Transport::tcp);
  EXPECT_EQ(transport_for(Transport::shm), Transport::shm);
  setenv("BIMETAL_TRANSPORT", "", 1);
  EXPECT_EQ(transport_for(Transport::automatic), Transport::automatic);
}

TEST_F(TransportChoice, AnUnknownValueIsRefused) {
  setenv("BIMETAL_TRANSPORT", "rdma", 1);
  expect_error(ErrorCode::InvalidArgument, {"rdma", "auto, tcp, shm or mpi"},
               [&] { transport_for(Transport::automatic); });
}

TEST_F(TransportChoice, RanksOfOneHostShareMemoryUnlessToldNotTo) {
  for (const auto& group : testing::make_thread_groups(3)) {
    EXPECT_EQ(group.transport(), Transport::shm);
    EXPECT_TRUE(group.topology().one_island());
  }
  GroupOptions without_memory;
  without_memory.transport = Transport::tcp;
  for (const auto& group : testing::make_thread_groups(3, without_memory)) {
    EXPECT_EQ(group.transport(), Transport::tcp);
    EXPECT_EQ(group.topology().islands.size(), 3);
  }
}

using ::testing::ElementsAre;
using Sees = std::vector<std::vector<bool>>;

TEST(Topology, SeeingWithoutBeingSeenIsNotEnough) {
  const Sees sees{{1, 1, 1}, {0, 1, 1}, {1, 1, 1}};
  // 0 sees 1, which does not see 0; 2 and each of them see each other: not a clear company.
  for (const auto& island : Topology::from(sees).islands) EXPECT_EQ(island.size(), 1);
}

}  // namespace
}  // namespace bimetal::comm
