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

using ::c10d::ReduceOp;

constexpr int kRanks = 3;

at::Tensor all_reduced(const BackendPtr& backend, const at::Tensor& tensor, const ReduceOp& op) {
  Tensors list{tensor};
  ::c10d::AllreduceOptions options;
  options.reduceOp = op;
  backend->allreduce(list, options)->wait();
  return tensor;
}

TEST(BackendCollectives, NoTimeAtAllIsNotTheGroupsTimeout) {
  run_backends(2, [](const BackendPtr& backend) {
    if (backend->getRank() == 1) return;  // it never comes
    std::vector<at::Tensor> list{at::ones({2})};
    ::c10d::AllreduceOptions options;
    options.timeout = std::chrono::milliseconds(0);
    try {
      backend->allreduce(list, options)->wait();
      ADD_FAILURE() << "done without the other rank";
    } catch (const c10d::BackendError& error) {
      EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("within 0 s"));
    }
  });
}

TEST(BackendCollectives, WhatCannotBeReducedIsRefusedByName) {
  run_backends(2, [](const BackendPtr& backend) {
    try {
      all_reduced(backend, at::ones({2}, at::kComplexFloat), ReduceOp::MAX);
      FAIL() << "no error";
    } catch (const c10d::BackendError& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unsupported);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("MAX"));
      EXPECT_THAT(error.what(), ::testing::HasSubstr("ComplexFloat"));
    }
    // The group is as good as before.
    EXPECT_EQ(all_reduced(backend, at::ones({1}), ReduceOp::SUM).item<float>(), 2);
  });
}

// Of what collectives give tests/python/test_collectives.py has a row for each type, operation
// and form; here is what Python cannot ask for.
TEST(BackendCollectives, SplitsThatDoNotFitAreRefused) {
  run_backends(kRanks, [](const BackendPtr& backend) {
    const int rank = backend->getRank();
    auto input = at::full({6, 2}, rank, at::kComplexFloat);
    auto output = at::empty({(rank + 1) * kRanks, 2}, at::kComplexFloat);
    std::vector<std::int64_t> received(kRanks, rank + 1);
    std::vector<std::int64_t> wrong{1, 1, 1};
    EXPECT_THROW(backend->alltoall_base(output, input, received, wrong, {}), c10d::BackendError);
  });
}

TEST(BackendCollectives, CallsInBetweenBecomeOneWork) {
  run_backends(2, [](const BackendPtr& backend) {
    const int other = 1 - backend->getRank();
    Tensors sent{at::full({3}, backend->getRank())};
    Tensors received{at::empty({3}, sent[0].options())};
    backend->startCoalescing();
    backend->recv(received, other, 7);
    backend->send(sent, other, 7);
    backend->endCoalescing()->wait();
    EXPECT_TRUE(at::equal(received[0], at::full({3}, other)));
    backend->startCoalescing();
    EXPECT_TRUE(backend->endCoalescing()->wait());
    EXPECT_THROW(backend->endCoalescing(), c10d::BackendError);
  });
}

}  // namespace
}  // namespace bimetal::testing
