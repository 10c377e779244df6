// Which launcher counts, as far as it can be told without mpirun; tests/mpi has the rest.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/ssh/hosts.h"
#include "support/errors.h"

namespace bimetal::launch {
namespace {

class FindRank : public ::testing::Test {
 protected:
  FindRank() {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE",
          "PMI_SIZE", "PMIX_RANK", "BIMETAL_TRANSPORT", "BIMETAL_MPI_LIBRARY"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      unsetenv(name);
      names_.push_back(name);
    }
  }
  ~FindRank() override {
    for (const auto& name : names_) unsetenv(name.c_str());
    for (const auto& [name, value] : before_) setenv(name.c_str(), value.c_str(), 1);
  }

  static std::optional<RankEnvironment> find(comm::Transport asked) {
    return find_rank(asked, Deadline::after(std::chrono::seconds(20)));
  }
  static void be_a_rank() {
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("LOCAL_RANK", "1", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

TEST_F(FindRank, NobodyHasStartedThisProcess) {
  EXPECT_FALSE(find(comm::Transport::automatic));
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);  // mpirun, but alone
  EXPECT_FALSE(find(comm::Transport::automatic));
}

TEST_F(FindRank, RankCountsEvenUnderMpirun) {
  be_a_rank();
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  EXPECT_EQ(find(comm::Transport::automatic)->rank, 1);
  EXPECT_EQ(find(comm::Transport::tcp)->world_size, 2);
}

TEST_F(FindRank, TcpLeavesMpiAlone) {
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  EXPECT_FALSE(find(comm::Transport::tcp));
}

TEST_F(FindRank, MpiWithoutMpirunIsAnError) {
  for (const bool is_rank : {false, true}) {
    if (is_rank) be_a_rank();
    expect_error(ErrorCode::InvalidArgument, {"mpirun"}, [&] { find(comm::Transport::mpi); });
  }
}

TEST(MeetingAddress, IsLoopbackForOneMachine) {
  EXPECT_EQ(meeting_address({{"localhost", "", true}}), "127.0.0.1");
}

TEST(MeetingAddress, IsWhereSshReachedTheFirstHost) {
  EXPECT_EQ(meeting_address({{"gpu1", "10.0.0.7", false}, {"localhost", "", true}}), "10.0.0.7");
  EXPECT_EQ(meeting_address({{"gpu1", "", false}, {"gpu2", "10.0.0.8", false}}), "gpu1");
}

TEST(MeetingAddress, IsThisMachinesOnTheWayToTheOthers) {
  EXPECT_EQ(meeting_address({{"localhost", "", true}, {"other", "127.0.0.2", false}}), "127.0.0.1");
}

}  // namespace
}  // namespace bimetal::launch
