#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdlib>

#include "bimetal/c10d/backend_error.h"
#include "unit/c10d/backend_ranks.h"

namespace bimetal::testing {
namespace {

using ::testing::HasSubstr;
using StorePtr = c10::intrusive_ptr<::c10d::Store>;
using Tensors = std::vector<at::Tensor>;

TEST(BackendGroups, AGroupOfSomeRanksSharesTheConnections) {
  run_backends(4, [](const BackendPtr& world, const StorePtr& store) {
    const int rank = world->getRank();
    const bool odd = rank % 2 == 1;
    const auto part =
        make_rank(store, rank / 2, 2,
                  odd ? std::vector<std::uint64_t>{1, 3} : std::vector<std::uint64_t>{0, 2});
    Tensors list{at::full({2}, rank)};
    part->allreduce(list, {})->wait();
    EXPECT_EQ(list[0][0].item<std::int64_t>(), odd ? 4 : 2);
    // Bytes are counted for the job: the same connections, the same count.
    EXPECT_EQ(part->group().bytes_sent(), world->group().bytes_sent());
    world->barrier({})->wait();
  });
}

/// What two ranks without a token are told, of the environment that `name` stands in.
std::string refusal_with(const char* name, const char* value) {
  ::setenv(name, value, 1);
  std::string told;
  try {
    run_backends(2, [](const BackendPtr&) {});
  } catch (const c10d::BackendError& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unauthorized) << error.what();
    told = error.what();
  }
  ::unsetenv(name);
  return told;
}

// Whoever reads torch's store would know a token that stands there.
TEST(BackendGroups, WithoutATokenNothingGoesBeyondLoopbackOrIsCalledEncrypted) {
  for (const auto& told :
       {refusal_with("BIMETAL_ADDRESS", "192.0.2.7"), refusal_with("BIMETAL_ENCRYPTION", "on")}) {
    EXPECT_THAT(told, HasSubstr("bimetal token FILE"));
    EXPECT_THAT(told, HasSubstr("BIMETAL_TOKEN_FILE=FILE"));
  }
}

TEST(BackendGroups, ErrorsOfAPartNameGlobalRanks) {
  run_backends(3, [](const BackendPtr& world, const StorePtr& store) {
    if (world->getRank() == 0) return;
    const auto part = make_rank(store, world->getRank() - 1, 2, {1, 2});
    Tensors list{at::ones({world->getRank()})};
    try {
      part->allreduce(list, {})->wait();
      FAIL() << "no error";
    } catch (const c10d::BackendError& error) {
      EXPECT_EQ(error.code(), ErrorCode::CallMismatch);
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), HasSubstr("rank 2"));
      EXPECT_THAT(error.what(), HasSubstr("[call_mismatch"));
    }
  });
}

TEST(BackendGroups, SplitAsksNoOtherRank) {
  run_backends(3, [](const BackendPtr& world, const StorePtr& store) {
    if (world->getRank() == 1) return;
    auto options = c10::make_intrusive<::c10d::Backend::Options>("bimetal");
    options->group_name = "outer";
    const auto outer = world->split(store, {0, 2}, options);
    ASSERT_TRUE(outer);
    Tensors list{at::ones({1})};
    outer->allreduce(list, {})->wait();
    EXPECT_EQ(list[0].item<float>(), 2);
  });
  run_backends(1, [](const BackendPtr& world, const StorePtr& store) {
    EXPECT_FALSE(world->split(store, {}, nullptr));
  });
}

TEST(BackendGroups, TheSameNameTwice) {
  run_backends(2, [](BackendPtr world, const StorePtr& store) {
    const int rank = world->getRank();
    world->shutdown();
    world.reset();
    const auto again = make_rank(store, rank, 2);
    Tensors list{at::ones({1})};
    again->allreduce(list, {})->wait();
    EXPECT_EQ(list[0].item<float>(), 2);
  });
}

TEST(BackendGroups, MonitoredBarrierNamesWhoIsMissingAndBreaksNothing) {
  run_backends(4, [](const BackendPtr& world) {
    ::c10d::BarrierOptions soon;
    soon.timeout = std::chrono::milliseconds(300);
    world->monitoredBarrier({}, false);
    if (world->getRank() == 0 || world->getRank() == 2) {
      try {
        world->monitoredBarrier(soon, false);
        FAIL() << "no error";
      } catch (const c10d::BackendError& error) {
        EXPECT_EQ(error.code(), ErrorCode::Timeout);
        EXPECT_EQ(error.rank(), 1);
        EXPECT_THAT(error.what(), HasSubstr("1, 3"));
      }
    }
    Tensors list{at::ones({1})};
    world->allreduce(list, {})->wait();
    EXPECT_EQ(list[0].item<float>(), 4);
  });
}

TEST(BackendGroups, AbortEndsWhatIsInFlightOnAllRanks) {
  run_backends(2, [](const BackendPtr& world) {
    if (world->getRank() == 1) {
      world->barrier({})->wait();  // rank 0 has made its group, too
      world->abort();
      return;
    }
    Tensors list{at::ones({1})};
    try {
      world->barrier({})->wait();
      world->recv(list, 1, 0)->wait();
      FAIL() << "no error";
    } catch (const c10d::BackendError& error) {
      EXPECT_EQ(error.code(), ErrorCode::Aborted);
      EXPECT_EQ(error.rank(), 1);
    }
  });
}

TEST(BackendGroups, InAGroupOfOneThereIsNobodyToReceiveFrom) {
  run_backends(1, [](const BackendPtr& world) {
    Tensors list{at::ones({1})};
    EXPECT_THROW(world->recvAnysource(list, 0), c10d::BackendError);
  });
}

TEST(BackendGroups, AMissingRankIsNamed) {
  const auto store = c10::make_intrusive<::c10d::HashStore>();
  try {
    make_rank(store, 0, 2, {}, std::chrono::milliseconds(400));
    FAIL() << "no error";
  } catch (const c10d::BackendError& error) {
    EXPECT_EQ(error.code(), ErrorCode::Timeout);
    EXPECT_THAT(error.what(), HasSubstr("did not join in time: 1"));
  }
}

}  // namespace
}  // namespace bimetal::testing
