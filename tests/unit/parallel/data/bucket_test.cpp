#include "bimetal/parallel/data/bucket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

namespace bimetal::parallel {
namespace {

using ::testing::ElementsAre;

Bucket bucket_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<ParameterSize> sizes;
  for (const auto& p : parameters) sizes.push_back({p.scalar_type(), p.numel()});
  auto plan = plan_buckets(sizes, 1 << 20, 1 << 20).at(0);
  auto flat = torch::zeros({Bucket::elements(plan)}, plan.dtype);
  return {std::move(plan), parameters, std::move(flat)};
}

TEST(Bucket, ViewsHaveTheParametersShapesAndShareTheFlatMemory) {
  auto bucket = bucket_of({torch::zeros({2, 3}), torch::zeros({4})});
  EXPECT_EQ(bucket.view(0).sizes(), (std::vector<std::int64_t>{4}));
  EXPECT_EQ(bucket.view(1).sizes(), (std::vector<std::int64_t>{2, 3}));
  bucket.view(1).fill_(5);
  EXPECT_TRUE(bucket.flat().slice(0, 4, 10).equal(torch::full({6}, 5.f)));
}

// An optimizer's zero_grad(set_to_none=false) detaches gradients in place.
TEST(Bucket, ViewsCanBeDetachedInPlace) {
  auto bucket = bucket_of({torch::zeros({2, 3})});
  EXPECT_NO_THROW(torch::Tensor(bucket.view(0)).detach_());
}

TEST(Bucket, IsCompleteWhenEverySlotIsFilledOnce) {
  auto bucket = bucket_of({torch::zeros({2}), torch::zeros({2})});
  EXPECT_FALSE(bucket.complete());
  bucket.fill(1);
  bucket.fill(1);
  EXPECT_FALSE(bucket.complete());
  EXPECT_TRUE(bucket.filled(1));
  EXPECT_FALSE(bucket.filled(0));
  bucket.fill_unused(0);
  EXPECT_TRUE(bucket.complete());
  bucket.reset();
  EXPECT_FALSE(bucket.complete());
  EXPECT_FALSE(bucket.filled(1));
}

TEST(Bucket, UnusedSlotsAddZeros) {
  auto bucket = bucket_of({torch::zeros({2})});
  bucket.view(0).fill_(9);
  bucket.fill_unused(0);
  EXPECT_TRUE(bucket.view(0).equal(torch::zeros({2})));
}

TEST(Bucket, SumOfUseTellsWhatAnyRankUsed) {
  for (const auto dtype : {torch::kFloat32, torch::kFloat64, torch::kFloat16, torch::kBFloat16}) {
    const std::vector<torch::Tensor> parameters(3, torch::zeros({2}, dtype));
    auto one = bucket_of(parameters);
    auto other = bucket_of(parameters);
    one.fill(0), one.fill(1), one.fill_unused(2);
    other.fill_unused(0), other.fill(1), other.fill_unused(2);
    torch::Tensor(one.flat()).add_(other.flat());
    EXPECT_THAT(one.used_by_any(), ElementsAre(true, true, false)) << c10::toString(dtype);
  }
}

TEST(Bucket, UseIsForgottenWithTheStep) {
  auto bucket = bucket_of({torch::zeros({2})});
  bucket.fill(0);
  EXPECT_THAT(bucket.used_by_any(), ElementsAre(true));
  bucket.reset();
  bucket.fill_unused(0);
  EXPECT_THAT(bucket.used_by_any(), ElementsAre(false));
}

}  // namespace
}  // namespace bimetal::parallel
