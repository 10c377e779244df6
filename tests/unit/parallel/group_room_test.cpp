#include "bimetal/parallel/group_room.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel {
namespace {

std::uintptr_t place(const torch::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr());
}

TEST(GroupRoom, WhatComesBackIsUsedAgain) {
  testing::run_ranks(2, [](int, comm::Group group) {
    constexpr std::array<std::size_t, 3> kBytes{4000, 100, 4096};
    const GroupRoom room(group, GroupRoom::bytes_for(kBytes));
    std::optional first = room.take(1000, torch::kFloat32);
    const auto second = room.take(100, torch::kUInt8);
    auto third = room.take(512, torch::kFloat64);
    ASSERT_EQ(group.transport(), comm::Transport::shm);
    EXPECT_EQ(place(second) - place(*first), 4032U);  // whole cache lines
    EXPECT_EQ(place(third) - place(second), 128U);

    const auto begin = place(*first);
    const auto more = room.take(1, torch::kFloat32);  // is ordinary: there is no room
    EXPECT_TRUE(place(more) < begin || place(more) >= place(third) + 4096);
    first.reset();
    EXPECT_EQ(place(room.take(1008, torch::kFloat32)), begin);
    EXPECT_NE(place(room.take(1009, torch::kFloat32)), begin);
  });
}

TEST(GroupRoom, OutlivesItsGroup) {
  testing::run_ranks(2, [](int, comm::Group group) {
    torch::Tensor tensor;
    {
      const GroupRoom room(group, 4096);
      tensor = room.take(1024, torch::kFloat32);
    }
    group.close(Deadline::after(std::chrono::seconds(60)));
    tensor.fill_(3);
    EXPECT_EQ(tensor.sum().item<float>(), 3072);
  });
}

TEST(GroupRoom, WithoutSharedMemoryTensorsAreOrdinary) {
  const GroupRoom none;
  EXPECT_EQ(none.take(7, torch::kInt16).numel(), 7);
  testing::run_ranks(1, [](int, comm::Group group) {
    EXPECT_EQ(GroupRoom(group, 4096).take(8, torch::kFloat32).numel(), 8);
  });
}

ErrorCode code_of_buffer(const torch::Tensor& tensor) {
  return code_of([&] { tensor_buffer(tensor); });
}

TEST(TensorBuffer, RefusesWhatIsNotOneRunOfKnownElements) {
  EXPECT_EQ(code_of_buffer(torch::zeros({3, 4}).t()), ErrorCode::InvalidArgument);
  EXPECT_EQ(code_of_buffer(torch::zeros({3}, torch::kComplexFloat)), ErrorCode::Unsupported);
  EXPECT_EQ(code_of_buffer(torch::zeros({3}, torch::kBool)), ErrorCode::Unsupported);
}

}  // namespace
}  // namespace bimetal::parallel
