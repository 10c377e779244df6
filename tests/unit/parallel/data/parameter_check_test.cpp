#include "bimetal/parallel/data/parameter_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <optional>

#include "bimetal/base/error.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel {
namespace {

using ::testing::AllOf;
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

TEST(ParameterCheck, NamesADifferentShape) {
  const auto error = error_when_rank_2_has([](task::ModelState& state) {
    state.parameters[1].tensor = torch::zeros({10, 6}, torch::requires_grad());
  });
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("rank 0 and rank 2"), HasSubstr("'fc.weight' float32 [10, 5]"),
                    HasSubstr("'fc.weight' float32 [10, 6]")));
}

TEST(ParameterCheck, NamesADifferentName) {
  const auto error = error_when_rank_2_has(
      [](task::ModelState& state) { state.parameters[0].name = "convolution.weight"; });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("'conv.weight'"), HasSubstr("'convolution.weight'")));
}

TEST(ParameterCheck, NamesADifferentType) {
  const auto error = error_when_rank_2_has([](task::ModelState& state) {
    state.parameters[0].tensor = state.parameters[0].tensor.detach().to(torch::kFloat64);
    state.parameters[0].tensor.requires_grad_();
  });
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("float32 [4, 1, 3, 3]"), HasSubstr("float64 [4, 1, 3, 3]")));
}

TEST(ParameterCheck, NamesAParameterFrozenOnOneRank) {
  const auto error = error_when_rank_2_has(
      [](task::ModelState& state) { state.parameters[0].tensor.requires_grad_(false); });
  EXPECT_THAT(error.what(), HasSubstr("frozen parameter 'conv.weight'"));
}

TEST(ParameterCheck, NamesAMissingTensorAndTheCounts) {
  const auto error =
      error_when_rank_2_has([](task::ModelState& state) { state.buffers.pop_back(); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor 4 of 4 on rank 0 is buffer 'norm.steps'"),
                                  HasSubstr("tensor 4 of 3 on rank 2 is nothing more")));
}

TEST(ParameterCheck, NamesADifferentBuffer) {
  const auto error = error_when_rank_2_has(
      [](task::ModelState& state) { state.buffers[0].tensor = torch::zeros({8}); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("buffer 'norm.running_mean' float32 [4]"),
                                  HasSubstr("buffer 'norm.running_mean' float32 [8]")));
}

TEST(ParameterCheck, NamesTheFirstOfSeveralDifferences) {
  const auto error = error_when_rank_2_has([](task::ModelState& state) {
    state.parameters[0].name = "first";
    state.parameters[1].name = "second";
  });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("tensor 1 of 4"), HasSubstr("'first'")));
}

}  // namespace
}  // namespace bimetal::parallel
