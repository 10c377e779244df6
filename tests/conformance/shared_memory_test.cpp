// Memory from Group::allocate: reduced in place, for every type, operator and world size.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "conformance/reference.h"
#include "conformance/transports.h"
#include "support/errors.h"

namespace bimetal::testing {
namespace {

using comm::Buffer;
using comm::DType;
using comm::Group;
using comm::GroupMemory;
using comm::ReduceOp;

class Allocated : public OnWorlds {
 protected:
  bool shared() const { return GetParam().transport == Transport::shm && size() > 1; }

  // All-reduces `count` elements at `place`.
  static void check(Group group, std::byte* place, std::size_t count, DType dtype, ReduceOp op) {
    const Array data = contributions(group.rank(), count, dtype, op);
    if (count > 0) std::memcpy(place, data.bytes().data(), data.bytes().size());
    group.all_reduce(Buffer{place, count, dtype}, op).wait();
    Array result(count, dtype);
    if (count > 0) std::memcpy(result.buffer().data, place, data.bytes().size());
    ASSERT_EQ(wrong_in_reduced(result, 0, group.size(), op), "")
        << to_string(op) << " of " << count << " " << to_string(dtype);
  }
};

TEST_P(Allocated, IsReducedWhereItIs) {
  on_ranks([&](int rank, Group group) {
    const GroupMemory memory = group.allocate(std::size_t{1} << 20);
    EXPECT_EQ(memory.shared(), shared());
    EXPECT_EQ(memory.bytes().size(), std::size_t{1} << 20);
    EXPECT_EQ(memory.bytes()[77], std::byte{0});
    for (const DType dtype : tested_types()) {
      for (const ReduceOp op : tested_ops()) {
        // Short, and long ones that differ in their place from rank to rank.
        for (const std::size_t count : {0, 1, 7, 20011}) {
          check(group, memory.bytes().data() + 64 * rank, count, dtype, op);
        }
      }
    }
  });
}

/// How a whole is cut among ranks, and where one of them has its own part.
struct Parts {
  std::vector<std::size_t> counts;
  std::size_t own = 0, first = 0, total = 0;

  Parts(std::vector<std::size_t> all, int rank) : counts(std::move(all)) {
    const auto mine = counts.begin() + rank;
    own = *mine;
    first = std::accumulate(counts.begin(), mine, std::size_t{0});
    total = std::accumulate(mine, counts.end(), first);
  }
};

/// Parts of unequal length, none for some.
Parts unequal_parts(const Group& group, std::size_t unit) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < group.size(); ++r) {
    counts.push_back(static_cast<std::size_t>(r) * 3 % 5 * unit);
  }
  counts.back() += 5;
  return {std::move(counts), group.rank()};
}

TEST_P(Allocated, PartsAreReducedFromWhereTheyAre) {
  on_ranks([&](int rank, Group group) {
    const GroupMemory memory = group.allocate(std::size_t{2} << 20);
    std::byte* const place = memory.bytes().data() + 64 * rank;
    for (const DType dtype : tested_types()) {
      for (const ReduceOp op : tested_ops()) {
        for (const std::size_t unit : {3, 9001}) {
          const auto [counts, own, first, total] = unequal_parts(group, unit);
          const Array data = contributions(rank, total, dtype, op);
          for (const bool within : {false, true}) {
            std::memcpy(place, data.bytes().data(), data.bytes().size());
            Array result(own, dtype);
            Buffer output = result.buffer();
            if (within) output.data = place + first * comm::size_of(dtype);
            group.reduce_scatter(Buffer{place, total, dtype}, output, counts, op).wait();
            if (own > 0) std::memmove(result.buffer().data, output.data, result.bytes().size());
            ASSERT_EQ(wrong_in_reduced(result, first, group.size(), op), "")
                << to_string(op) << " of " << total << " " << to_string(dtype);
          }
        }
      }
    }
  });
}

TEST_P(Allocated, PartsAreGatheredFromWhereTheyAre) {
  on_ranks([&](int rank, Group group) {
    const GroupMemory memory = group.allocate(std::size_t{2} << 20);
    std::byte* const place = memory.bytes().data() + 64 * rank;
    for (const DType dtype : tested_types()) {
      for (const std::size_t unit : {3, 9001}) {
        const auto [counts, own, first, total] = unequal_parts(group, unit);
        const Array part = payloads(rank, 0, own, dtype);
        // All into the memory itself; or into another, and where one rank's part is elsewhere.
        for (const int elsewhere : {-2, -1, 0}) {
          Array result(total, dtype);
          const auto output = elsewhere == -2 ? Buffer{place, total, dtype} : result.buffer();
          std::byte* input = place + first * comm::size_of(dtype);
          Array copy = part;
          if (elsewhere == rank) input = static_cast<std::byte*>(copy.buffer().data);
          if (own > 0) std::memmove(input, part.bytes().data(), part.bytes().size());
          group.all_gather({input, own, dtype}, output, counts).wait();
          std::memmove(result.buffer().data, output.data, result.bytes().size());
          std::size_t begin = 0;
          for (int r = 0; r < group.size(); begin += counts[static_cast<std::size_t>(r++)]) {
            const auto count = counts[static_cast<std::size_t>(r)];
            ASSERT_EQ(wrong_in_given(result, begin, r, 0, count), "") << "of rank " << r;
          }
        }
      }
    }
  });
}

TEST_P(Allocated, MayBeMixedWithOtherMemory) {
  on_ranks([&](int rank, Group group) {
    constexpr std::size_t kCount = 30011;
    const GroupMemory first = group.allocate(kCount * 8), second = group.allocate(kCount * 8);
    std::vector<std::byte> own(kCount * 8);
    // One rank's lies elsewhere; in another arena; across the end would be no buffer at all.
    check(group, rank == 0 ? own.data() : first.bytes().data(), kCount, DType::float64,
          ReduceOp::sum);
    check(group, rank == 0 ? second.bytes().data() : first.bytes().data(), kCount, DType::float64,
          ReduceOp::sum);
    check(group, second.bytes().data(), kCount, DType::float64, ReduceOp::sum);
    check(group, own.data(), kCount, DType::float64, ReduceOp::sum);
  });
}

TEST_P(Allocated, MayBeGivenBackAndOutlivesItsGroup) {
  on_ranks([&](int rank, Group group) {
    for (int round = 0; round < 20; ++round) {
      const GroupMemory memory = group.allocate(std::size_t{1} << 18);
      check(group, memory.bytes().data(), 50000, DType::float32, ReduceOp::avg);
    }
    const GroupMemory memory = group.allocate(4096);
    group.close(Deadline::after(std::chrono::seconds(60)));
    memory.bytes()[4095] = std::byte{1};
  });
}

class AllocatedShared : public Allocated {};

int times_in_place(const Group& group) {
  const auto record = group.flight_recorder();
  int times = 0;
  for (auto at = record.find("in place"); at != std::string::npos;
       at = record.find("in place", at + 1)) {
    ++times;
  }
  return times;
}

// Numbers alone would be the same through slots.
TEST_P(AllocatedShared, LongCallsAreDoneInPlace) {
  on_ranks([&](int rank, Group group) {
    constexpr std::size_t kPart = 50000;
    const auto size = static_cast<std::size_t>(group.size());
    const GroupMemory memory = group.allocate(size * kPart * 4);
    std::byte* const place = memory.bytes().data();
    const Buffer whole{place, size * kPart, DType::float32};
    std::vector<std::size_t> counts(size, kPart);
    counts.front() = 0;  // that rank gives nothing to an all-gather, and gets nothing of a sum
    counts.back() = 2 * kPart;
    const auto first = Parts(counts, rank).first;
    std::vector<float> part(counts[static_cast<std::size_t>(rank)]);
    const Buffer elsewhere{part.data(), part.size(), DType::float32};

    group.all_reduce(whole).wait();
    EXPECT_EQ(times_in_place(group), 1);
    group.reduce_scatter(whole, elsewhere, counts).wait();
    EXPECT_EQ(times_in_place(group), 2);
    const Buffer within{place + first * 4, part.size(), DType::float32};
    group.all_gather(rank == 0 ? Buffer{nullptr, 0, DType::float32} : within, whole, counts).wait();
    EXPECT_EQ(times_in_place(group), 3);
    // From elsewhere through slots.
    group.all_gather(elsewhere, whole, counts).wait();
    EXPECT_EQ(times_in_place(group), 3);
  });
}

TEST_P(AllocatedShared, DifferentSizesAreAnError) {
  on_ranks([&](int rank, Group group) {
    expect_error(ErrorCode::InvalidArgument, {"rank 0 asks for 100", "rank 1 for 200"},
                 [&] { group.allocate(rank == 1 ? 200 : 100); });
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Allocated, ::testing::ValuesIn(worlds({1, 2, 3, 5, 8})),
                         [](const auto& info) { return name_of(info.param); });

// Elsewhere the ranks do not hear of each other's wishes.
INSTANTIATE_TEST_SUITE_P(Worlds, AllocatedShared,
                         ::testing::Values(World{Transport::shm, 2}, World{Transport::shm, 3},
                                           World{Transport::shm, 5}, World{Transport::shm, 8}),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing
