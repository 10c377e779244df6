// Memory from Group::allocate: reduced in place, for every type, operator and world size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "bimetal/base/error.h"
#include "conformance/reference.h"
#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::Buffer;
using comm::DType;
using comm::Group;
using comm::GroupMemory;
using comm::ReduceOp;
using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST_P(AllocatedShared, DifferentSizesAreAnError) {
  on_ranks([&](int rank, Group group) {
    try {
      group.allocate(rank == 1 ? 200 : 100);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("rank 0 asks for 100"), HasSubstr("rank 1 for 200")));
    }
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
