#include "bimetal/task/batch_norm.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/task/segments.h"
#include "bimetal/task/unit.h"

namespace bimetal::task {
namespace {

torch::Tensor images(std::int64_t samples) {
  return torch::randn({samples, 3, 4, 5}, torch::kFloat64) * 2 + 1;
}

double difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

GroupedBatchNorm norm_of(std::int64_t group) {
  GroupedBatchNorm norm(3, group);
  Model model{{make_unit("norm", norm.ptr(), [](const torch::Tensor& x) { return x; })}};
  model.to(torch::kCPU, torch::kFloat64);
  return norm;
}

TEST(GroupedBatchNorm, OneGroupIsTorchs) {
  torch::manual_seed(1);
  auto ours = norm_of(8);
  torch::nn::BatchNorm2d theirs(3);
  theirs->to(torch::kFloat64);
  for (int step = 0; step < 3; ++step) {
    const auto x = images(8);
    EXPECT_LE(difference(ours->forward(x), theirs->forward(x)), 1e-12);
    merge(ours->statistics());
    EXPECT_LE(difference(ours->statistics().mean, theirs->running_mean), 1e-12);
    EXPECT_LE(difference(ours->statistics().variance, theirs->running_var), 1e-12);
  }
  ours->eval();
  theirs->eval();
  const auto x = images(5);
  EXPECT_LE(difference(ours->forward(x), theirs->forward(x)), 1e-12);
}

TEST(GroupedBatchNorm, GroupsAreApartFromEachOther) {
  torch::manual_seed(2);
  auto norm = norm_of(4);
  const auto x = images(10);
  const auto whole = norm->forward(x);
  const auto parts = torch::cat({norm->forward(x.narrow(0, 0, 8)), norm->forward(x.narrow(0, 8, 2))});
  EXPECT_EQ(difference(whole, parts), 0);
  EXPECT_GT(difference(whole.narrow(0, 0, 2), norm->forward(x.narrow(0, 0, 2))), 1e-3);
}

TEST(GroupedBatchNorm, RunningStatisticsMoveOnceAStep) {
  torch::manual_seed(3);
  auto whole = norm_of(4), parts = norm_of(4);
  const auto x = images(12);
  whole->forward(x);
  parts->forward(x.narrow(0, 4, 8));
  parts->forward(x.narrow(0, 0, 4));
  EXPECT_EQ(parts->statistics().mean.abs().max().item<double>(), 0);
  merge(whole->statistics());
  merge(parts->statistics());
  EXPECT_LE(difference(whole->statistics().mean, parts->statistics().mean), 1e-14);
  EXPECT_LE(difference(whole->statistics().variance, parts->statistics().variance), 1e-14);
  const auto before = whole->statistics().mean.clone();
  merge(whole->statistics());  // of no samples
  EXPECT_EQ(difference(whole->statistics().mean, before), 0);
}

}  // namespace
}  // namespace bimetal::task
