// Ranks that stop taking part: deadlines, abort, leaving; and arguments that can't work.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "bimetal/base/error.h"
#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::Buffer;
using comm::DType;
using comm::Group;
using comm::ReduceOp;
using comm::Work;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::Internal, "nothing was thrown");
}

class Failure : public OnWorlds {};

TEST_P(Failure, DeadlineNamesTheRankThatDidNotCall) {
  on_ranks([&](int rank, Group group) {
    const int absent = group.size() - 1;
    std::vector<float> data(50000, 1);
    group.barrier().wait();
    // The absent one learns of it from the others' abort.
    const auto error = error_of([&] {
      const auto deadline = Deadline::after(rank == absent ? kLong : milliseconds(1500));
      std::vector<float> message(1);
      const auto work = rank == absent ? group.recv(buffer(message), 0, 1, deadline)
                                       : group.all_reduce(buffer(data), ReduceOp::sum, deadline);
      work.wait();
    });
    EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
    EXPECT_EQ(error.rank(), absent) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("all_reduce(sum) of 50000 float32 as call 1"));
    EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(absent) + " ("));
    const auto later = error_of([&] { group.barrier().wait(); });
    EXPECT_STREQ(later.what(), error.what());
  });
}

TEST_P(Failure, DeadlineOfAMessageNamesItsSender) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(4);
    const auto error = error_of([&] {
      const auto deadline = Deadline::after(rank == 0 ? milliseconds(300) : kLong);
      (rank == 0 ? group.recv(buffer(data), 1, 9, deadline) : group.barrier(deadline)).wait();
    });
    EXPECT_EQ(error.code(), ErrorCode::Timeout);
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), HasSubstr("with tag 9"));
  });
}

TEST_P(Failure, ACallHeldUpByAnEarlierOneEndsAtItsOwnDeadline) {
  on_ranks([&](int rank, Group group) {
    if (rank == 1) {
      std::vector<float> message(1);
      EXPECT_EQ(error_of([&] { group.recv(buffer(message), 0).wait(); }).code(),
                ErrorCode::Timeout);
      return;
    }
    std::vector<float> a(10), b(10);
    const auto first = group.all_reduce(buffer(a), ReduceOp::sum, Deadline::after(kLong));
    const auto second =
        group.all_reduce(buffer(b), ReduceOp::sum, Deadline::after(milliseconds(400)));
    const auto error = error_of([&] { second.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::Timeout);
    EXPECT_THAT(error.what(), HasSubstr("as call 1 was not done"));
    EXPECT_THAT(error.what(), HasSubstr("as call 0"));
    EXPECT_THROW(first.wait(), Error);
  });
}

TEST_P(Failure, WaitUntilComesBackEarly) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(10, 1), token(1);
    if (rank == 0) {
      const auto work = group.all_reduce(buffer(data));
      EXPECT_FALSE(work.wait_until(Deadline::after(milliseconds(20))));
      EXPECT_FALSE(work.done());
      EXPECT_FALSE(work.error());
      for (int peer = 1; peer < group.size(); ++peer) group.send(buffer(token), peer).wait();
      work.wait();
      EXPECT_TRUE(work.done());
    } else {
      group.recv(buffer(token), 0).wait();
      group.all_reduce(buffer(data)).wait();
    }
    EXPECT_EQ(data[9], group.size());
  });
}

TEST_P(Failure, AbortEndsEverythingEverywhere) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(100000, 1), message(100000);
    std::vector<Work> works;
    if (rank == 0) {
      group.abort("the user pressed Ctrl-C");
    } else {
      works.push_back(group.all_reduce(buffer(data)));
      works.push_back(group.barrier());
      works.push_back(group.recv(buffer(message), 0));
    }
    works.push_back(group.barrier());
    for (const auto& work : works) {
      const auto error = error_of([&] { work.wait(); });
      EXPECT_EQ(error.code(), ErrorCode::Aborted);
      EXPECT_STREQ(error.what(), "the user pressed Ctrl-C");
      EXPECT_EQ(error.rank(), 0);
    }
  });
}

TEST_P(Failure, AFailedSubgroupLeavesItsParentAlone) {
  on_ranks([&](int rank, Group world) {
    Group pair = world.subgroup({0, 1});
    world.barrier().wait();  // all have made it: a rank still in that call would be aborted, too
    if (rank == 0) pair.abort("enough");
    if (pair) {
      EXPECT_EQ(error_of([&] { pair.barrier().wait(); }).code(), ErrorCode::Aborted);
    }
    std::vector<float> data(60000, 1);
    world.all_reduce(buffer(data)).wait();
    EXPECT_EQ(data.back(), world.size());
  });
}

TEST_P(Failure, ASubgroupWaitsForItsMembersAsLongAsItIsTold) {
  on_ranks([&](int rank, Group world) {
    if (rank == 0) {
      const auto begun = Deadline::Clock::now();
      const auto error = error_of([&] {
        world.subgroup({0, 1}, world.new_subgroup_id(), milliseconds(200));
      });
      EXPECT_EQ(error.code(), ErrorCode::Timeout) << error.what();
      EXPECT_EQ(error.rank(), 1) << error.what();
      EXPECT_LT(Deadline::Clock::now() - begun, comm::GroupOptions().timeout / 2);
    }
    world.barrier(Deadline::after(kLong)).wait();  // and the world goes on
  });
}

// No deadline comes into it: ranks that wait for one that has left hear of it.
TEST_P(Failure, ARankThatLeavesIsMissed) {
  on_ranks([&](int rank, Group group) {
    if (rank == 1) return;
    std::vector<float> data(100000, 1);
    const auto error = error_of(
        [&] { group.all_reduce(buffer(data), ReduceOp::sum, Deadline::after(kLong)).wait(); });
    EXPECT_EQ(error.code(), ErrorCode::PeerLost) << error.what();
    EXPECT_EQ(error.rank(), 1) << error.what();
  });
}

TEST_P(Failure, ClosingWithCallsInFlightEndsThem) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(10);
    Work work;
    if (rank == 0) {
      work = group.all_reduce(buffer(data));
      group.close(Deadline::after(milliseconds(100)));
    } else {
      work = group.recv(buffer(data), 0);
    }
    const auto error = error_of([&] { work.wait(); });
    EXPECT_EQ(to_string(error.code()), "aborted") << error.what();
  });
}

TEST_P(Failure, CallsAfterCloseFail) {
  on_ranks([&](int rank, Group group) {
    group.barrier().wait();
    group.close(Deadline::after(kLong));
    EXPECT_EQ(error_of([&] { group.barrier().wait(); }).code(), ErrorCode::Aborted);
  });
}

TEST_P(Failure, BadArgumentsAreRefusedAtOnceAndHarmNothing) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(8, 1), other(4);
    std::vector<double> doubles(8);
    const int n = group.size();
    const auto peer = (rank + 1) % n;
    const std::vector<std::size_t> no_counts;
    const std::vector<std::size_t> wild_counts(static_cast<std::size_t>(n), std::size_t(-1));
    const std::vector<std::function<void()>> bad = {
        [&] { group.broadcast(buffer(data), n); },
        [&] { group.broadcast(buffer(data), -1); },
        [&] { group.reduce(buffer(data), n); },
        [&] {
          group.all_reduce(Buffer{nullptr, 3, DType::float32});
        },
        [&] {
          group.all_reduce(Buffer{data.data(), 1, DType{77}});
        },
        [&] { group.all_reduce(buffer(data), ReduceOp{0}); },
        [&] {
          group.all_reduce(Buffer{data.data(), std::size_t(-1) / 2, DType::float32});
        },
        [&] { group.all_gather(buffer(data), buffer(other)); },
        [&] { group.all_gather(buffer(data), buffer(doubles)); },
        [&] { group.reduce_scatter(buffer(other), buffer(data)); },
        [&] { group.gather(buffer(data), buffer(other), rank); },
        [&] { group.scatter(buffer(other), buffer(data), rank); },
        [&] { group.all_to_all(buffer(data), no_counts, buffer(data), no_counts); },
        [&] { group.all_to_all(buffer(data), wild_counts, buffer(data), wild_counts); },
        [&] { group.send(buffer(data), rank); },
        [&] { group.recv(buffer(data), n); },
        [&] {
          group.send(Buffer{nullptr, 1, DType::int8}, peer);
        },
        [&] { group.subgroup({}); },
        [&] {
          group.subgroup({0, 0});
        },
        [&] { group.subgroup({n}); },
    };
    for (std::size_t i = 0; i < bad.size(); ++i) {
      EXPECT_EQ(error_of(bad[i]).code(), ErrorCode::InvalidArgument) << "case " << i;
    }
    group.all_reduce(buffer(data)).wait();
    EXPECT_EQ(data[0], n);
    EXPECT_EQ(error_of([] { Group().rank(); }).code(), ErrorCode::InvalidArgument);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Failure, ::testing::ValuesIn(worlds({2, 3, 5})),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing
