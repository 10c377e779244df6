// Collectives that move data without changing it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>

#include "conformance/reference.h"
#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::DType;
using comm::Group;

constexpr std::size_t kFewCounts[] = {0, 1, 7, 1000};

class DataMovement : public OnWorlds {
 protected:
  // Part of `data` from `offset` on is elements [first, first + count) of what `from` gave.
  static void expect_given(const Array& data, std::size_t offset, int from, std::size_t first,
                           std::size_t count) {
    ASSERT_EQ(wrong_in_given(data, offset, from, first, count), "") << "from " << from;
  }

  static void sweep(const std::function<void(std::size_t, DType)>& check) {
    for (const DType dtype : tested_types()) {
      for (const std::size_t count : kFewCounts) check(count, dtype);
    }
    check(300007, DType::float32);
  }
};

TEST_P(DataMovement, BroadcastFromEveryRoot) {
  on_ranks([&](int rank, Group group) {
    for (int root = 0; root < group.size(); ++root) {
      sweep([&](std::size_t count, DType dtype) {
        Array data = rank == root ? payloads(root, 0, count, dtype) : Array(count, dtype);
        group.broadcast(data.buffer(), root).wait();
        expect_given(data, 0, root, 0, count);
      });
    }
  });
}

TEST_P(DataMovement, AllGatherBytesOfLengthsThatNobodyKnows) {
  on_ranks([&](int rank, Group group) {
    const auto length_of = [](int round, int of) {
      constexpr std::size_t kLengths[] = {0, 1, 300007, 8};
      return kLengths[static_cast<std::size_t>(round + of) % std::size(kLengths)];
    };
    for (int round = 0; round < 4; ++round) {
      const Array input = payloads(rank, 0, length_of(round, rank), DType::uint8);
      const auto all = std::make_shared<comm::Gathered>();
      const auto view = input.view();
      group.all_gather_bytes({static_cast<const std::byte*>(view.data), view.count}, all).wait();
      ASSERT_EQ(all->parts.size(), static_cast<std::size_t>(group.size()));
      for (int r = 0; r < group.size(); ++r) {
        const auto part = all->parts[static_cast<std::size_t>(r)];
        Array got(length_of(round, r), DType::uint8);
        ASSERT_EQ(part.size(), got.buffer().count);
        if (!part.empty()) std::memcpy(got.buffer().data, part.data(), part.size());
        expect_given(got, 0, r, 0, part.size());
      }
    }
  });
}

TEST_P(DataMovement, AllGather) {
  on_ranks([&](int rank, Group group) {
    sweep([&](std::size_t count, DType dtype) {
      const Array input = payloads(rank, 0, count, dtype);
      Array output(count * static_cast<std::size_t>(group.size()), dtype);
      group.all_gather(input.view(), output.buffer()).wait();
      for (int r = 0; r < group.size(); ++r) {
        expect_given(output, count * static_cast<std::size_t>(r), r, 0, count);
      }
    });
  });
}

// Parts of every length, none for some: rank r's is (r·7 + shift) mod 5 times `unit`.
std::vector<std::size_t> uneven_counts(int size, std::size_t shift, std::size_t unit) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < size; ++r) {
    counts.push_back((static_cast<std::size_t>(r) * 7 + shift) % 5 * unit);
  }
  return counts;
}

TEST_P(DataMovement, AllGatherOfUnequalParts) {
  on_ranks([&](int rank, Group group) {
    for (std::size_t shift = 0; shift < 5; ++shift) {
      sweep([&](std::size_t unit, DType dtype) {
        const auto counts = uneven_counts(group.size(), shift, unit);
        const auto total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
        const Array input = payloads(rank, 0, counts[static_cast<std::size_t>(rank)], dtype);
        Array output(total, dtype);
        group.all_gather(input.view(), output.buffer(), counts).wait();
        std::size_t begin = 0;
        for (int r = 0; r < group.size(); ++r) {
          const auto count = counts[static_cast<std::size_t>(r)];
          expect_given(output, begin, r, 0, count);
          begin += count;
        }
      });
    }
  });
}

TEST_P(DataMovement, GatherToEveryRoot) {
  on_ranks([&](int rank, Group group) {
    for (int root = 0; root < group.size(); ++root) {
      sweep([&](std::size_t count, DType dtype) {
        const Array input = payloads(rank, 0, count, dtype);
        const auto whole = count * static_cast<std::size_t>(group.size());
        Array output(rank == root ? whole : 0, dtype);
        group.gather(input.view(), output.buffer(), root).wait();
        for (int r = 0; rank == root && r < group.size(); ++r) {
          expect_given(output, count * static_cast<std::size_t>(r), r, 0, count);
        }
      });
    }
  });
}

TEST_P(DataMovement, ScatterFromEveryRoot) {
  on_ranks([&](int rank, Group group) {
    for (int root = 0; root < group.size(); ++root) {
      sweep([&](std::size_t count, DType dtype) {
        const auto whole = count * static_cast<std::size_t>(group.size());
        const Array input = payloads(root, 0, rank == root ? whole : 0, dtype);
        Array output(count, dtype);
        group.scatter(input.view(), output.buffer(), root).wait();
        expect_given(output, 0, root, count * static_cast<std::size_t>(rank), count);
      });
    }
  });
}

// Rank i sends (i + 2j) % 5 × scale elements to rank j: uneven, and nothing to some.
TEST_P(DataMovement, AllToAllWithUnevenCounts) {
  on_ranks([&](int rank, Group group) {
    for (const std::size_t scale : {0, 1, 7, 40001}) {
      const auto size = static_cast<std::size_t>(group.size());
      const auto count = [&](std::size_t from, std::size_t to) {
        return (from + 2 * to) % 5 * scale;
      };
      std::vector<std::size_t> send_counts(size), recv_counts(size);
      for (std::size_t r = 0; r < size; ++r) {
        send_counts[r] = count(static_cast<std::size_t>(rank), r);
        recv_counts[r] = count(r, static_cast<std::size_t>(rank));
      }
      const auto sum = [](const auto& v) { return std::reduce(v.begin(), v.end()); };
      const Array input = payloads(rank, 0, sum(send_counts), DType::float32);
      Array output(sum(recv_counts), DType::float32);
      group.all_to_all(input.view(), send_counts, output.buffer(), recv_counts).wait();
      std::size_t offset = 0;
      for (std::size_t from = 0; from < size; ++from) {
        std::size_t first = 0;  // where in the sender's input this rank's piece begins
        for (int to = 0; to < rank; ++to) first += count(from, static_cast<std::size_t>(to));
        expect_given(output, offset, static_cast<int>(from), first, recv_counts[from]);
        offset += recv_counts[from];
      }
    }
  });
}

TEST_P(DataMovement, NobodyLeavesABarrierBeforeTheLastHasCome) {
  std::atomic<int> arrived{0};
  on_ranks([&](int rank, Group group) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      group.barrier().wait();
      ASSERT_GE(arrived.load(), round * group.size());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, DataMovement, ::testing::ValuesIn(worlds({1, 2, 3, 5, 8})),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing
