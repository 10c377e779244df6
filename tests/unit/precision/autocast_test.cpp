#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/precision/precision.h"

namespace bimetal::precision {
namespace {

using ::testing::HasSubstr;

torch::Tensor product() {
  return at::linear(torch::ones({4, 4}), torch::ones({4, 4}));
}

TEST(Autocast, ComputesInTheTypeAskedFor) {
  for (const auto precision : {Precision::float32, Precision::bfloat16, Precision::float16}) {
    const Autocast cast(c10::kCPU, precision);
    EXPECT_EQ(product().scalar_type(), dtype_of(precision)) << name_of(precision);
  }
  EXPECT_EQ(product().scalar_type(), torch::kFloat32);
}

TEST(Autocast, PutsBackWhatWasThere) {
  const auto dtype = at::autocast::get_autocast_dtype(c10::kCPU);
  {
    const Autocast outer(c10::kCPU, Precision::float16);
    {
      const Autocast inner(c10::kCPU, Precision::bfloat16);
      EXPECT_EQ(product().scalar_type(), torch::kBFloat16);
    }
    EXPECT_EQ(product().scalar_type(), torch::kFloat16);
    std::thread([] { EXPECT_EQ(product().scalar_type(), torch::kFloat32); }).join();
  }
  EXPECT_EQ(at::autocast::get_autocast_dtype(c10::kCPU), dtype);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
}

// Backward outside of the scope, as Python's users are told to do it.
TEST(Autocast, GradientsOfParametersAreFloat32) {
  auto weight = torch::randn({4, 4}).requires_grad_();
  const auto input = torch::randn({3, 4});
  torch::Tensor loss;
  {
    const CastCache cache;
    const Autocast cast(c10::kCPU, Precision::bfloat16);
    loss = at::linear(input, weight).to(torch::kFloat32).square().sum();
  }
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), torch::kFloat32);
  auto exact = weight.detach().clone().requires_grad_();
  at::linear(input, exact).square().sum().backward();
  const auto error = (weight.grad() - exact.grad()).abs().max() / exact.grad().abs().max();
  EXPECT_LT(error.item<double>(), 0.05);
  EXPECT_GT(error.item<double>(), 0);
}

TEST(Autocast, TheCacheEndsBeforeParametersChange) {
  auto weight = torch::ones({4, 4}).requires_grad_();
  const auto forward = [&] {
    const Autocast cast(c10::kCPU, Precision::bfloat16);
    return at::linear(torch::ones({1, 4}), weight).sum().item<double>();
  };
  {
    const CastCache cache;
    EXPECT_EQ(forward(), 16);
  }
  {
    const torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(forward(), 32);
  at::autocast::clear_cache();
}

bool in_tf32(at::Float32Op operation) {
  return at::globalContext().float32Precision(at::Float32Backend::CUDA, operation) ==
         at::Float32Precision::TF32;
}

TEST(Products, SwitchTf32OnForAsLongAsAnyLives) {
  ASSERT_FALSE(in_tf32(at::Float32Op::MATMUL));
  const bool convolutions = in_tf32(at::Float32Op::CONV);
  for (const auto precision : {Precision::float32, Precision::bfloat16, Precision::float16}) {
    const Products none(precision);
    EXPECT_FALSE(in_tf32(at::Float32Op::MATMUL)) << name_of(precision);
  }
  {
    const Products outer(Precision::tf32);
    { const Products inner(Precision::tf32); }
    std::thread([] { EXPECT_TRUE(in_tf32(at::Float32Op::MATMUL)); }).join();
    EXPECT_TRUE(in_tf32(at::Float32Op::CONV));
    EXPECT_EQ(product().scalar_type(), torch::kFloat32);
  }
  EXPECT_FALSE(in_tf32(at::Float32Op::MATMUL));
  EXPECT_EQ(in_tf32(at::Float32Op::CONV), convolutions);
}

// A setting that a user has switched on by torch's own call stays on.
TEST(Products, LeaveOnWhatWasOn) {
  at::globalContext().setAllowTF32CuBLAS(true);
  { const Products products(Precision::tf32); }
  EXPECT_TRUE(in_tf32(at::Float32Op::MATMUL));
  at::globalContext().setAllowTF32CuBLAS(false);
}

TEST(Precision, Tf32IsRefusedWhereItWouldMeanFloat32) {
  for (const auto device : {torch::Device(torch::kCPU), torch::Device(torch::kMPS)}) {
    try {
      require_precision(Precision::tf32, device);
      FAIL() << device;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unsupported);
      EXPECT_THAT(error.what(), HasSubstr("Ampere and later"));
      EXPECT_THAT(error.what(), HasSubstr("precision=float32"));
    }
  }
}

TEST(Precision, NamesAreThoseOfTheJob) {
  for (const std::string name : {"float32", "tf32", "bfloat16", "float16"}) {
    EXPECT_EQ(name_of(precision_named(name)), name);
  }
  EXPECT_THROW(precision_named("auto"), Error);
}

TEST(Precision, IsTriedOutBeforeItIsUsed) {
  EXPECT_NO_THROW(require_precision(Precision::float16, torch::kCPU));
  EXPECT_NO_THROW(require_precision(Precision::float32, torch::kMeta));
  try {
    require_precision(Precision::bfloat16, torch::kMeta);
    FAIL() << "a device without autocast";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Unsupported);
    EXPECT_THAT(error.what(), HasSubstr("cannot compute in bfloat16"));
    EXPECT_THAT(error.what(), HasSubstr("precision=float32"));
  }
}

}  // namespace
}  // namespace bimetal::precision
