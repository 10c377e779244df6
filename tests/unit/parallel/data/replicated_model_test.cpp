#include "bimetal/parallel/data/replicated_model.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/types.h>

#include <barrier>
#include <chrono>
#include <stdexcept>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/in_process_mesh.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel {
namespace {

const ReplicatedModelOptions kOptions{
    .bucket_bytes = 64, .first_bucket_bytes = 16, .timeout = std::chrono::seconds(60)};

// A regression whose gradient is easy to compute apart: ∂/∂w mean((x·w)²) = 2/b · Σ x (x·w).
struct Regression : torch::nn::Module {
  explicit Regression(double start = 0.5) {
    weight = register_parameter("weight", torch::full({3}, start, torch::kFloat64));
    mean = register_buffer("mean", torch::full({2}, start, torch::kFloat64));
    steps = register_buffer("steps", torch::full({}, std::int64_t(start * 2)));
  }
  torch::Tensor mean_loss(const torch::Tensor& x) const { return x.mv(weight).square().mean(); }
  torch::Tensor weight, mean, steps;
};

torch::Tensor all_samples(std::int64_t count) {
  return torch::arange(3 * count, torch::kFloat64).reshape({count, 3}).sin();
}

torch::Tensor gradient_alone(const torch::Tensor& samples) {
  const Regression model;
  model.mean_loss(samples).backward();
  return model.weight.grad();
}

TEST(ReplicatedModel, StartsEveryRankFromRankZero) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    const auto model = std::make_shared<Regression>(rank + 1);
    const ReplicatedModel parallel(model, group, kOptions);
    EXPECT_TRUE(model->weight.equal(torch::ones({3}, torch::kFloat64)));
    EXPECT_TRUE(model->mean.equal(torch::ones({2}, torch::kFloat64)));
    EXPECT_EQ(model->steps.item<std::int64_t>(), 2);
  });
}

TEST(ReplicatedModel, BroadcastsBuffersOnRequest) {
  testing::run_ranks(3, [](int rank, comm::Group group) {
    const auto model = std::make_shared<Regression>();
    ReplicatedModel parallel(model, group, kOptions);
    model->mean.fill_(rank);
    model->steps.fill_(100 + rank);
    parallel.broadcast_buffers(2);
    EXPECT_TRUE(model->mean.equal(torch::full({2}, 2., torch::kFloat64)));
    EXPECT_EQ(model->steps.item<std::int64_t>(), 102);
  });
}

TEST(ReplicatedModel, RefusesModelsThatDiffer) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    auto model = torch::nn::Linear(3, 4 + rank);
    expect_error(ErrorCode::CallMismatch, {"parameter 'weight' float32 [5, 3]"},
                 [&] { const ReplicatedModel parallel(model.ptr(), group, kOptions); });
  });
}

TEST(ReplicatedModel, RefusesTypesThatCannotBeSummedByName) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto model = std::make_shared<torch::nn::Module>();
    model->register_parameter("phase", torch::zeros({3}, torch::kComplexFloat));
    expect_error(ErrorCode::Unsupported, {"'phase'"},
                 [&] { const ReplicatedModel parallel(model, group, kOptions); });
  });
}

TEST(ReplicatedModel, FrozenParametersAreBroadcastButNotReduced) {
  testing::run_ranks(2, [](int rank, comm::Group group) {
    auto model = torch::nn::Linear(3, 2);
    model->bias.requires_grad_(false);
    model->bias.fill_(rank + 1);
    ReplicatedModel parallel(model.ptr(), group, kOptions);
    EXPECT_TRUE(model->bias.equal(torch::ones({2})));
    parallel.begin_step(2);
    parallel.backward_last(model->forward(torch::ones({1, 3})).sum(), 1);
    parallel.finish_step();
    EXPECT_TRUE(model->weight.grad().equal(torch::ones({2, 3})));
    EXPECT_FALSE(model->bias.grad().defined());
  });
}

TEST(ReplicatedModel, CallsOutOfOrderAreRefusedAndHarmless) {
  const auto refused = [](const auto& call) { return code_of(call) == ErrorCode::InvalidArgument; };
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto model = std::make_shared<Regression>();
    ReplicatedModel parallel(model, group, kOptions);
    const auto loss = [&] { return model->mean_loss(all_samples(2)); };
    EXPECT_TRUE(refused([&] { parallel.finish_step(); }));
    EXPECT_TRUE(refused([&] { parallel.backward(loss(), 2); }));
    EXPECT_TRUE(refused([&] { parallel.begin_step(0); }));
    parallel.begin_step(4);
    EXPECT_TRUE(refused([&] { parallel.begin_step(4); }));
    EXPECT_TRUE(refused([&] { parallel.backward(loss(), 0); }));
    EXPECT_TRUE(refused([&] { parallel.backward(loss(), 5); }));
    EXPECT_TRUE(refused([&] { parallel.backward(torch::ones({2}, torch::requires_grad()), 2); }));
    parallel.backward_last(loss(), 2);
    EXPECT_TRUE(refused([&] { parallel.backward(loss(), 2); }));
    EXPECT_TRUE(refused([&] { parallel.backward_last(loss(), 2); }));
    EXPECT_TRUE(refused([&] { parallel.begin_step(4); }));
    parallel.finish_step();
    EXPECT_TRUE(model->weight.grad().allclose(gradient_alone(all_samples(2)), 1e-14, 1e-14));
  });
}

// The errors of other ranks when one of them fails within a step.

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

}  // namespace
}  // namespace bimetal::parallel
