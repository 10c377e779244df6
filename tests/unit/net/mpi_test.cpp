// The part of the MPI transport that can be tested without MPI; the rest is in tests/mpi.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "bimetal/net/mpi/library.h"
#include "bimetal/net/mpi/mpi_thread.h"

namespace bimetal::net::mpi {
namespace {

using namespace std::chrono_literals;

std::optional<LaunchEnvironment> told_by(const std::map<std::string, std::string>& variables) {
  return launch_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(MpiLaunchEnvironment, NothingIsSaidWithoutALauncher) {
  EXPECT_FALSE(told_by({}));
  EXPECT_FALSE(told_by({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
}

TEST(MpiLaunchEnvironment, EachFamilyHasItsVariables) {
  const auto open_mpi = told_by({{"OMPI_COMM_WORLD_SIZE", "4"}, {"PMIX_RANK", "1"}});
  ASSERT_TRUE(open_mpi);
  EXPECT_EQ(open_mpi->family, Family::open_mpi);
  EXPECT_EQ(open_mpi->world_size, 4);

  const auto mpich = told_by({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}});
  ASSERT_TRUE(mpich);
  EXPECT_EQ(mpich->family, Family::mpich);
  EXPECT_EQ(mpich->world_size, 3);

  const auto slurm = told_by({{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}});
  ASSERT_TRUE(slurm);
  EXPECT_EQ(slurm->family, Family::unknown);
  EXPECT_EQ(slurm->world_size, 8);
  EXPECT_FALSE(told_by({{"PMIX_RANK", "0"}})->world_size);
}

TEST(MpiLaunchEnvironment, NonsenseIsNoWorldSize) {
  for (const char* nonsense : {"", "0", "-2", "4x"}) {
    EXPECT_FALSE(told_by({{"OMPI_COMM_WORLD_SIZE", nonsense}})) << nonsense;
  }
}

TEST(MpiBackOff, AsksAtOnceThenEverMoreRarely) {
  BackOff back_off;
  const auto begun = BackOff::Clock::now();
  back_off.reset(begun);
  EXPECT_EQ(back_off.pause(begun), 0us);
  EXPECT_EQ(back_off.pause(begun + 40us), 0us);
  EXPECT_EQ(back_off.pause(begun + 60us), BackOff::kShortest);
  EXPECT_EQ(back_off.pause(begun + 4ms), 500us);
  EXPECT_EQ(back_off.pause(begun + 10s), BackOff::kLongest);
  back_off.reset(begun + 10s);
  EXPECT_EQ(back_off.pause(begun + 10s), 0us);
}

}  // namespace
}  // namespace bimetal::net::mpi
