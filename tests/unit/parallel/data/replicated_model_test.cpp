#include "bimetal/parallel/data/replicated_model.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>

#include <numeric>
#include <vector>

#include "bimetal/base/error.h"
#include "support/errors.h"
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

/// What a rank computes: its samples, and of how many a micro-batch is. Its last one is announced.
struct Share {
  std::vector<std::int64_t> samples;  ///< by rank
  std::int64_t micro_batch = 100;
  bool announced = true;
};

// The exactness of whole trainings is golden's.
TEST(ReplicatedModel, AnySharesGiveTheGradientOfTheMean) {
  for (const auto& share : {Share{{7, 3, 1}}, Share{{5, 0, 3}}, Share{{8, 4}, 3},
                            Share{{2, 4}, 1, false}, Share{{5}, 2}}) {
    const auto count = std::reduce(share.samples.begin(), share.samples.end());
    const auto samples = all_samples(count);
    testing::run_ranks(static_cast<int>(share.samples.size()), [&](int rank, comm::Group group) {
      const auto model = std::make_shared<Regression>();
      ReplicatedModel parallel(model, group, kOptions);
      auto left = samples.split_with_sizes(share.samples)[rank];
      parallel.begin_step(count);
      while (left.size(0) > 0) {
        const auto piece = left.slice(0, 0, share.micro_batch);
        left = left.slice(0, share.micro_batch);
        if (share.announced && left.size(0) == 0) {
          parallel.backward_last(model->mean_loss(piece), piece.size(0));
        } else {
          parallel.backward(model->mean_loss(piece), piece.size(0));
        }
      }
      parallel.finish_step();
      EXPECT_TRUE(model->weight.grad().allclose(gradient_alone(samples), 1e-14, 1e-14));
    });
  }
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

// One tensor under two names is one parameter: its gradient is summed and sent once.
TEST(ReplicatedModel, SharedParameterIsReducedOnce) {
  struct Tied : torch::nn::Module {
    Tied() {
      inner->weight = inner->register_parameter("weight", torch::full({3}, 2.0));
      register_module("inner", inner);
      outer_weight = register_parameter("outer_weight", inner->weight);
    }
    struct Inner : torch::nn::Module {
      torch::Tensor weight;
    };
    std::shared_ptr<Inner> inner = std::make_shared<Inner>();
    torch::Tensor outer_weight;
  };
  testing::run_ranks(2, [](int rank, comm::Group group) {
    const auto model = std::make_shared<Tied>();
    ReplicatedModel parallel(model, group, kOptions);
    parallel.begin_step(4);
    parallel.backward_last((model->inner->weight * model->outer_weight).sum(), 2);
    parallel.finish_step();
    EXPECT_TRUE(model->inner->weight.grad().equal(torch::full({3}, 4.f)));  // of w·w
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

}  // namespace
}  // namespace bimetal::parallel
