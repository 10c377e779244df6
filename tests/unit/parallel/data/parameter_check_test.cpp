#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/same_model.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kCheckTimeout{60};

task::ModelState reference() {
  task::ModelState state;
  state.parameters = {{"conv.weight", torch::zeros({4, 1, 3, 3}, torch::requires_grad())},
                      {"fc.weight", torch::zeros({10, 5}, torch::requires_grad())}};
  state.buffers = {{"norm.running_mean", torch::zeros({4})},
                   {"norm.steps", torch::zeros({}, torch::kInt64)}};
  return state;
}

// The error that every rank gets when rank 2 of 3 holds the changed model.
Error error_when_rank_2_has(const std::function<void(task::ModelState&)>& change) {
  std::vector<std::optional<Error>> errors(3);
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    auto state = reference();
    if (rank == 2) change(state);
    try {
      check_same_on_all_ranks(state, group, kCheckTimeout);
    } catch (const Error& error) {
      errors[rank] = error;
    }
    group.barrier().wait();  // the group is still good
  });
  for (const auto& error : errors) {
    if (!error) throw std::runtime_error("a rank saw no difference");
    EXPECT_STREQ(error->what(), errors[0]->what());
    EXPECT_EQ(error->rank(), 2);
    EXPECT_EQ(error->code(), ErrorCode::CallMismatch);
  }
  return *errors[0];
}

TEST(ParameterCheck, AcceptsEqualModels) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    auto state = reference();
    state.parameters[0].tensor.data().fill_(rank);  // values may differ
    check_same_on_all_ranks(state, group, kCheckTimeout);
  });
}

TEST(ParameterCheck, AcceptsAModelWithoutTensors) {
  testing::run_ranks(
      2, [](int rank, comm::Group group) { check_same_on_all_ranks({}, group, kCheckTimeout); });
}

TEST(ParameterCheck, NamesTheFirstDifference) {
  struct Row {
    std::function<void(task::ModelState&)> change;
    std::vector<std::string> words;
  };
  const Row rows[] = {
      {[](auto& state) {
         state.parameters[1].tensor = torch::zeros({10, 6}).requires_grad_();
       },
       {"rank 0 and rank 2", "'fc.weight' float32 [10, 5]", "'fc.weight' float32 [10, 6]"}},
      {[](auto& state) { state.parameters[0].name = "convolution.weight"; },
       {"'conv.weight'", "'convolution.weight'"}},
      {[](auto& state) {
         auto& tensor = state.parameters[0].tensor;
         tensor = tensor.detach().to(torch::kFloat64).requires_grad_();
       },
       {"float32 [4, 1, 3, 3]", "float64 [4, 1, 3, 3]"}},
      {[](auto& state) { state.parameters[0].tensor.requires_grad_(false); },
       {"frozen parameter 'conv.weight'"}},
      {[](auto& state) { state.buffers.pop_back(); },
       {"tensor 4 of 4 on rank 0 is buffer 'norm.steps'",
        "tensor 4 of 3 on rank 2 is nothing more"}},
      {[](auto& state) { state.buffers[0].tensor = torch::zeros({8}); },
       {"buffer 'norm.running_mean' float32 [4]", "buffer 'norm.running_mean' float32 [8]"}},
      {[](auto& state) {
         for (auto& parameter : state.parameters) parameter.name = "first of " + parameter.name;
       },
       {"tensor 1 of 4", "'first of conv.weight'"}}};
  for (const auto& [change, words] : rows) {
    const auto error = error_when_rank_2_has(change);
    for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

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
