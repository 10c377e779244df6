#include "bimetal/optim/part_of_step.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

constexpr double kRate = 0.1, kMomentum = 0.9;

torch::Tensor parameter() {
  return torch::arange(1, 5, torch::kFloat64).clone().set_requires_grad(false);
}

torch::Tensor gradient() {
  return torch::tensor({1.0, -2.0, 0.5, 3.0}, torch::kFloat64);
}

torch::optim::SGD sgd(const torch::Tensor& tensor) {
  return torch::optim::SGD({tensor}, torch::optim::SGDOptions(kRate).momentum(kMomentum));
}

void step(torch::optim::Optimizer& optimizer, torch::Tensor tensor, double part) {
  tensor.mutable_grad() = gradient();
  const torch::NoGradGuard no_grad;
  optim::step_by_part(optimizer, 1, part);
}

torch::Tensor velocity(torch::optim::Optimizer& optimizer, const torch::Tensor& tensor) {
  const auto& state = *optimizer.state().at(tensor.unsafeGetTensorImpl());
  return dynamic_cast<const torch::optim::SGDParamState&>(state).momentum_buffer();
}

TEST(PartOfStep, PartsLeaveTheVelocityOfTheWholeStep) {
  auto whole = parameter(), parts = parameter();
  auto one = sgd(whole), other = sgd(parts);
  // libtorch takes the very first gradient as it is.
  step(one, whole, 1);
  step(other, parts, 1);
  for (int i = 0; i < 3; ++i) {
    step(one, whole, 1);
    for (const double part : {0.5, 0.2, 0.3}) step(other, parts, part);
    EXPECT_TRUE(torch::allclose(velocity(one, whole), velocity(other, parts), 1e-12, 1e-12));
  }
}

TEST(LookAhead, IsWhereTheVelocityLeads) {
  auto tensor = parameter();
  auto optimizer = sgd(tensor);
  auto later = tensor.clone();
  optim::look_ahead(optimizer, tensor, 2, 0.5, later);
  EXPECT_TRUE(torch::equal(later, tensor)) << "no step has been made yet";
  step(optimizer, tensor, 1);
  later = tensor.clone();
  optim::look_ahead(optimizer, tensor, 2, 0.5, later);
  EXPECT_TRUE(torch::allclose(later, tensor - kRate * gradient(), 1e-12, 1e-12));
}

TEST(LookAhead, OfAdamIsItsNextStepWithoutANewGradient) {
  auto tensor = parameter();
  torch::optim::AdamW optimizer({tensor}, torch::optim::AdamWOptions(kRate).weight_decay(0));
  step(optimizer, tensor, 1);
  auto later = tensor.clone();
  optim::look_ahead(optimizer, tensor, 1, 1, later);
  // After one step both means are the gradient's: a step of the rate in its direction.
  EXPECT_TRUE(torch::allclose(later, tensor - kRate * gradient().sign(), 1e-6, 1e-6));
}

/// How far from the minimum of w² a training ends whose gradients are one step old.
double left_with_old_gradients(double steps_ahead) {
  auto w = torch::ones({1}, torch::kFloat64);
  auto optimizer = sgd(w);
  const torch::NoGradGuard no_grad;
  auto pulled = w.clone();
  for (int i = 0; i < 400; ++i) {
    w.mutable_grad() = 2 * pulled;
    pulled = w.clone();
    optim::look_ahead(optimizer, w, steps_ahead, 1, pulled);
    optim::step_by_part(optimizer, 1, 1);
  }
  return std::abs(w.item<double>());
}

TEST(LookAhead, OldGradientsNoLongerWorkAgainstMomentum) {
  EXPECT_GT(left_with_old_gradients(0), 1e3);
  EXPECT_LT(left_with_old_gradients(1), 1e-3);
}

TEST(LookAhead, WithoutAVelocityNothingIsKnownOfLater) {
  auto tensor = parameter();
  torch::optim::SGD optimizer({tensor}, torch::optim::SGDOptions(kRate));
  step(optimizer, tensor, 1);
  auto later = tensor.clone();
  optim::look_ahead(optimizer, tensor, 1, 1, later);
  EXPECT_TRUE(torch::equal(later, tensor));
}

TEST(LookAhead, AStoreSendsOtherValuesThanItKeeps) {
  const auto plan = plan_shards(std::vector<std::int64_t>{4}, std::vector<double>{1});
  ShardStore store(plan, 0, {parameter()}, [](std::vector<torch::Tensor> tensors) {
    return std::make_unique<torch::optim::SGD>(tensors,
                                               torch::optim::SGDOptions(kRate).momentum(kMomentum));
  });
  const std::uint64_t lease = 1;
  const auto g = gradient();
  const auto place = store.place(lease, 0, 2, {comm::Scheme::none}, 4 * sizeof(double));
  std::memcpy(place.data(), g.const_data_ptr(), place.size());
  store.received(lease, 0);
  ASSERT_TRUE(store.close_lease(lease, 1));
  store.apply(1, {1, 1, {lease}, {}});
  const auto kept = store.values();
  EXPECT_TRUE(torch::allclose(*kept, parameter() - kRate * g));
  EXPECT_TRUE(torch::allclose(*store.values(2), parameter() - 3 * kRate * g));
  EXPECT_TRUE(torch::allclose(*kept, parameter() - kRate * g));
  EXPECT_EQ(store.values(0), kept) << "without a copy";
}

}  // namespace
}  // namespace bimetal::parallel::server
