#include "bimetal/parallel/data/broadcast.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "support/thread_ranks.h"

namespace bimetal::parallel {
namespace {

constexpr std::chrono::seconds kBroadcastTimeout{60};

std::vector<torch::Tensor> mixed_tensors(double value) {
  return {torch::full({3}, value, torch::kFloat32),
          torch::full({}, value, torch::kInt64),
          torch::full({5}, value > 0, torch::kBool),
          torch::full({2, 2}, value, torch::kComplexDouble),
          torch::full({0, 4}, value, torch::kFloat64),
          torch::full({7}, value, torch::kBFloat16),
          torch::full({4, 6}, value, torch::kFloat64).t()};
}

TEST(Broadcast, CopiesTensorsOfAnyTypeFromTheRoot) {
  for (const int root : {0, 2}) {
    testing::run_ranks(3, [&](int rank, comm::Group group) {
      auto tensors = mixed_tensors(rank == root ? 7 : 0);
      broadcast_tensors(tensors, root, group, 1 << 20, kBroadcastTimeout);
      const auto expected = mixed_tensors(7);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(tensors[i].equal(expected[i])) << "tensor " << i << " of rank " << rank;
      }
    });
  }
}

TEST(Broadcast, SplitsIntoMessagesOfAnySize) {
  for (const std::size_t message_bytes : {0u, 1u, 40u, 100u}) {
    testing::run_ranks(2, [&](int rank, comm::Group group) {
      auto tensors = mixed_tensors(rank == 0 ? 3 : 0);
      broadcast_tensors(tensors, 0, group, message_bytes, kBroadcastTimeout);
      const auto expected = mixed_tensors(3);
      for (std::size_t i = 0; i < tensors.size(); ++i) EXPECT_TRUE(tensors[i].equal(expected[i]));
    });
  }
}

TEST(Broadcast, WritesThroughToLeavesThatRequireGradients) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto parameter =
        torch::full({3}, double(rank), torch::dtype(torch::kFloat32).requires_grad(true));
    broadcast_tensors({&parameter, 1}, 1, group, 1 << 20, kBroadcastTimeout);
    EXPECT_TRUE(parameter.equal(torch::ones({3})));
    EXPECT_TRUE(parameter.requires_grad());
    EXPECT_TRUE(parameter.is_leaf());
  });
}

// Other ranks may not even call it: nothing is sent.
TEST(Broadcast, SendsNothingWithoutElements) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    if (rank == 0) {
      const std::vector<torch::Tensor> empty = {torch::zeros({0, 3})};
      broadcast_tensors({}, 0, group, 1 << 20, kBroadcastTimeout);
      broadcast_tensors(empty, 0, group, 1 << 20, kBroadcastTimeout);
    }
    group.barrier().wait();
  });
}

}  // namespace
}  // namespace bimetal::parallel
