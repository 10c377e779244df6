// What other ranks see when one of them fails within a step.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/types.h>

#include <barrier>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/replicated_model.h"
#include "support/errors.h"
#include "support/in_process_mesh.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel {
namespace {

// One bucket per parameter, so that a step has several exchanges to fail between.
const ReplicatedModelOptions kFaultOptions{
    .bucket_bytes = 1, .first_bucket_bytes = 1, .timeout = std::chrono::seconds(60)};

// Identity whose backward fails on demand, as an allocation on a full device would.
struct Fuse : torch::autograd::Function<Fuse> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               bool blown) {
    context->saved_data["blown"] = blown;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    if (context->saved_data["blown"].toBool()) throw std::range_error("the fuse has blown");
    return {gradients[0], torch::Tensor()};
  }
};

// loss = mean(front · back) with a fuse between: a failure leaves back with a gradient and front
// without.
struct Chain : torch::nn::Module {
  torch::Tensor loss(bool blown) const { return (Fuse::apply(front, blown) * back).mean(); }
  torch::Tensor front = register_parameter("front", torch::full({4}, 2.f));
  torch::Tensor back = register_parameter("back", torch::full({4}, 3.f));
};

TEST(DataParallelFaults, FailedBackwardOfOneRankHangsNobody) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    const auto model = std::make_shared<Chain>();
    ReplicatedModel parallel(model, group, kFaultOptions);
    for (int step = 0; step < 3; ++step) {
      parallel.begin_step(3);
      const bool fails = step == 1 && rank == 1;
      if (fails) {
        EXPECT_THROW(parallel.backward_last(model->loss(true), 1), std::range_error);
      } else {
        parallel.backward_last(model->loss(false), 1);
      }
      parallel.finish_step();
      const auto missing = step == 1 ? 2.f / 3 : 1.f;
      EXPECT_TRUE(model->front.grad().allclose(torch::full({4}, 0.75f * missing)));
      EXPECT_TRUE(model->back.grad().allclose(torch::full({4}, 0.5f)));
    }
  });
}

TEST(DataParallelFaults, FailedForwardOfOneRankHangsNobody) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto model = std::make_shared<Chain>();
    ReplicatedModel parallel(model, group, kFaultOptions);
    for (int step = 0; step < 2; ++step) {
      parallel.begin_step(2);
      if (rank == 0) parallel.backward_last(model->loss(false), 1);
      parallel.finish_step();
      EXPECT_TRUE(model->front.grad().allclose(torch::full({4}, 0.375f)));
    }
  });
}

TEST(DataParallelFaults, AbortOfOneRankEndsTheOthersStep) {
  std::barrier started(3);
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    const auto model = std::make_shared<Chain>();
    ReplicatedModel parallel(model, group, kFaultOptions);
    started.arrive_and_wait();
    parallel.begin_step(3);
    if (rank == 2) {
      group.abort("rank 2 has had enough");
      return;
    }
    parallel.backward_last(model->loss(false), 1);
    expect_error(ErrorCode::Aborted, {}, [&] { parallel.finish_step(); });
  });
}

TEST(DataParallelFaults, LostRankEndsTheStepAndIsNamed) {
  auto meshes = testing::make_in_process_meshes(2);
  net::Mesh& mesh_of_1 = *meshes[1];
  auto groups = testing::make_groups(std::move(meshes));

  std::barrier started(2);
  testing::run_ranks(std::move(groups), [&](int rank, comm::Group group) {
    const auto model = std::make_shared<Chain>();
    ReplicatedModel parallel(model, group, kFaultOptions);
    started.arrive_and_wait();
    parallel.begin_step(2);
    if (rank == 1) {
      mesh_of_1.drop(0);  // as when this process is killed
      return;
    }
    EXPECT_NO_THROW(parallel.backward_last(model->loss(false), 1));
    EXPECT_EQ(expect_error(ErrorCode::PeerLost, {}, [&] { parallel.finish_step(); }).rank(), 1);
  });
}

TEST(DataParallelFaults, StuckRankEndsInATimeout) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto model = std::make_shared<Chain>();
    auto hurried = kFaultOptions;
    hurried.timeout = std::chrono::seconds(3);
    ReplicatedModel parallel(model, group, hurried);
    parallel.begin_step(2);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(5));
      return;
    }
    parallel.backward_last(model->loss(false), 1);
    expect_error(ErrorCode::Timeout, {}, [&] { parallel.finish_step(); });
  });
}

}  // namespace
}  // namespace bimetal::parallel
