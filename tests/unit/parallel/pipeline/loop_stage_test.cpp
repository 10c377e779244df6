// A stage in somebody else's loop that cannot begin a batch tells the others.

#include "bimetal/parallel/pipeline/loop_stage.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>

#include "bimetal/base/error.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::pipeline {
namespace {

TEST(LoopStage, ARankWithoutRoomForItsGradientsTellsTheOthers) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto weight = torch::full({3, 3}, 0.5, torch::kFloat64).requires_grad_();
    task::ModelState own;
    own.parameters.push_back({"weight", weight});
    LoopStageOptions options;
    options.timeout = std::chrono::seconds(20);
    LoopStage stage(std::move(group), MeshShape{2, 1, 1}, own, {}, std::move(options));
    const auto forward = [&](int /*chunk*/, int /*micro_batch*/, const task::Values& inputs) {
      if (rank == 0) return task::Values{torch::ones({2, 3}, torch::kFloat64).matmul(weight)};
      return task::Values{inputs.front().matmul(weight).sum()};
    };
    const LoopBatch batch{.samples = {2}, .weight = 2, .digest = 7};
    EXPECT_TRUE(stage.train(batch, 1.0, forward).has_value());
    const auto before = weight.grad().clone();
    // A number that looks like petabytes of them, of which there cannot be a copy.
    const auto copyless = torch::zeros({1}, torch::kFloat64).expand({std::int64_t{1} << 50});
    if (rank == 1) weight.mutable_grad() = copyless;
    try {
      stage.train(batch, 1.0, forward);
      ADD_FAILURE() << "rank " << rank << " has learned from it";
    } catch (const Error& error) {
      EXPECT_EQ(rank, 0);
      EXPECT_EQ(error.code(), ErrorCode::Aborted) << error.what();
      EXPECT_EQ(error.rank(), 1);
    } catch (...) {
      EXPECT_EQ(rank, 1);
      EXPECT_TRUE(device::is_out_of_memory(std::current_exception()));
    }
    if (rank == 1) weight.mutable_grad() = before.clone();
    EXPECT_TRUE(torch::equal(weight.grad(), before)) << "none is lost";
    EXPECT_TRUE(stage.train(batch, 1.0, forward).has_value());
    EXPECT_TRUE(torch::allclose(weight.grad(), 2 * before, 1e-12, 1e-12));
  });
}

}  // namespace
}  // namespace bimetal::parallel::pipeline
