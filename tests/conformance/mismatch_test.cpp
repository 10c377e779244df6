// Ranks that call different things: both sides learn both calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>

#include "bimetal/base/error.h"
#include "conformance/transports.h"
#include "support/errors.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::Buffer;
using comm::DType;
using comm::Group;
using comm::ReduceOp;
using comm::Work;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Call = std::function<Work(Group&, Buffer)>;

class Mismatch : public OnWorlds {
 protected:
  // The last rank makes another call than the others. Every rank that gets an error gets this one.
  void expect_mismatch(const Call& usual, const Call& other, const std::string& usual_text,
                       const std::string& other_text) {
    std::mutex mutex;
    int noticed = 0;
    on_ranks([&](int rank, Group group) {
      std::vector<float> agreed(3, 1);
      std::vector<float> memory(100, 1);
      const bool odd_one = rank == group.size() - 1;
      try {
        // Call 0 goes well, unless faster ranks have found the mismatch in call 1 before its end.
        group.all_reduce(buffer(agreed)).wait();
        (odd_one ? other : usual)(group, buffer(memory)).wait();
        // A rank that only sends may be through before anybody has looked.
        group.barrier().wait();
        FAIL() << "rank " << rank << " noticed nothing";
      } catch (const Error& error) {
        std::lock_guard lock(mutex);
        ++noticed;
        EXPECT_EQ(error.code(), ErrorCode::CallMismatch) << error.what();
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr(usual_text), HasSubstr(other_text), HasSubstr("as call 1")));
        EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(group.size() - 1)));
      }
      // The group stays failed, with the same cause.
      expect_error(ErrorCode::CallMismatch, {}, [&] { group.barrier().wait(); });
    });
    EXPECT_EQ(noticed, size());
  }

  static Work reduced(Group& group, Buffer data, ReduceOp op) {
    return group.all_reduce(data, op, Deadline::after(kLong));
  }
  static Work sent(Group& group, Buffer data, int root) {
    return group.broadcast(data, root, Deadline::after(kLong));
  }
};

TEST_P(Mismatch, OfWhatIsCalledOnWhat) {
  const Call sum = [](Group& g, Buffer b) { return reduced(g, b, ReduceOp::sum); };
  const auto sum_of = [](std::size_t count, DType dtype) -> Call {
    return [=](Group& g, Buffer b) { return reduced(g, {b.data, count, dtype}, ReduceOp::sum); };
  };
  const std::string usual = "all_reduce(sum) of 100 float32";
  const std::vector<std::pair<Call, std::string>> others = {
      {[](Group& g, Buffer b) { return sent(g, b, 1); }, "broadcast of 100 float32 from root 1"},
      {[](Group& g, Buffer) { return g.barrier(Deadline::after(kLong)); }, "barrier"},
      {[](Group& g, Buffer b) { return reduced(g, b, ReduceOp::max); }, "all_reduce(max)"},
      {sum_of(10, DType::float32), "of 10 float32"},
      {sum_of(0, DType::float32), "of 0 float32"},
      {sum_of(100, DType::int32), "of 100 int32"}};
  for (const auto& [other, text] : others) expect_mismatch(sum, other, usual, text);
}

// Each waits for the other to send: no frame of the call itself ever crosses.
TEST_P(Mismatch, OfTheRootWhereEveryoneWaits) {
  const int last = size() - 1;
  expect_mismatch([&](Group& g, Buffer b) { return sent(g, b, last); },
                  [](Group& g, Buffer b) { return sent(g, b, 0); },
                  "from root " + std::to_string(last), "from root 0");
}

TEST_P(Mismatch, OfTheRootWhereEveryoneSends) {
  const auto gathered = [](Group& group, Buffer data, int root) {
    static thread_local std::vector<float> whole;
    whole.resize(data.count * static_cast<std::size_t>(group.size()));
    return group.gather(data, buffer(whole), root, Deadline::after(kLong));
  };
  expect_mismatch([&](Group& g, Buffer b) { return gathered(g, b, 0); },
                  [&](Group& g, Buffer b) { return gathered(g, b, 1); }, "to root 0", "to root 1");
}

TEST_P(Mismatch, OfACallThatTheOthersHaveFinished) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(10, 1);
    const auto deadline = Deadline::after(kLong);
    expect_error(ErrorCode::CallMismatch, {"from root 0", "from root 1"}, [&] {
      // Rank 0 gives and is through at once; the others wait for someone else.
      group.broadcast(buffer(data), rank == 0 ? 0 : 1, deadline).wait();
      group.barrier(deadline).wait();
    });
  });
}

TEST_P(Mismatch, OfAMessagesLength) {
  on_ranks([&](int rank, Group group) {
    std::vector<float> data(12);
    const auto deadline = Deadline::after(kLong);
    expect_error(
        ErrorCode::CallMismatch,
        {"rank 0 called send of 10 float32 to rank 1", "tag 3", "rank 1 called recv of 12 float32"},
        [&] {
          if (rank == 0) group.send({data.data(), 10, DType::float32}, 1, 3, deadline).wait();
          if (rank == 1) group.recv(buffer(data), 0, 3, deadline).wait();
          group.barrier(deadline).wait();
        });
  });
}

TEST_P(Mismatch, OfAllToAllCountsOfOnePair) {
  on_ranks([&](int rank, Group group) {
    const auto n = static_cast<std::size_t>(group.size());
    std::vector<std::size_t> send_counts(n, 5), recv_counts(n, 5);
    if (rank == 1) recv_counts[0] = 7;
    std::vector<float> input(5 * n), output(5 * n + (rank == 1 ? 2 : 0));
    const auto deadline = Deadline::after(kLong);
    expect_error(
        ErrorCode::CallMismatch,
        {"rank 0 called all_to_all with 5 float32", "rank 1 called it with 7 float32"}, [&] {
          group.all_to_all(buffer(input), send_counts, buffer(output), recv_counts, deadline)
              .wait();
          group.barrier(deadline).wait();
        });
  });
}

// As many elements in all, cut elsewhere.
TEST_P(Mismatch, OfTheCountsOfUnequalParts) {
  on_ranks([&](int rank, Group group) {
    const auto n = static_cast<std::size_t>(group.size());
    std::vector<std::size_t> counts(n, 4);
    if (rank == group.size() - 1) {
      counts.front() = 3;
      counts.back() = 5;
    }
    std::vector<float> input(counts[static_cast<std::size_t>(rank)]), output(4 * n);
    const auto deadline = Deadline::after(kLong);
    expect_error(ErrorCode::CallMismatch, {"rank " + std::to_string(group.size() - 1)}, [&] {
      group.all_gather(buffer(input), buffer(output), counts, deadline).wait();
      group.barrier(deadline).wait();
    });
  });
}

TEST_P(Mismatch, OfSubgroupLists) {
  on_ranks([&](int rank, Group group) {
    expect_error(ErrorCode::CallMismatch, {"[0, 1]", "[1, 0]"}, [&] {
      group.subgroup(rank == 1 ? std::vector{1, 0} : std::vector{0, 1});
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Mismatch, ::testing::ValuesIn(worlds({2, 3, 5})),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing
