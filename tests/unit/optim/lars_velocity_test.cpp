// LARS on a parameter server. For tensors of one dimension it is plain momentum SGD, with which it
// is compared.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/optim/lars.h"
#include "bimetal/optim/part_of_step.h"

namespace bimetal::optim {
namespace {

constexpr double kRate = 0.1;

class LarsVelocity : public ::testing::Test {
 protected:
  void step(double part) {
    const torch::NoGradGuard no_grad;
    for (auto* tensor : {&ours_, &theirs_}) {
      tensor->mutable_grad() = torch::tensor({1.0, -2.0, 0.5, 3.0}, torch::kFloat64);
    }
    step_by_part(lars_, 1, part);
    step_by_part(sgd_, 1, part);
  }
  torch::Tensor ours_ = torch::arange(1, 5, torch::kFloat64);
  torch::Tensor theirs_ = ours_.clone();
  Lars lars_{std::vector{ours_}, LarsOptions(kRate)};
  torch::optim::SGD sgd_{std::vector{theirs_}, torch::optim::SGDOptions(kRate).momentum(0.9)};
};

TEST_F(LarsVelocity, MakesPartsOfStepsAsMomentumSgdDoes) {
  for (const double part : {1.0, 0.5, 0.2, 0.3, 1.0}) {
    step(part);
    EXPECT_TRUE(torch::allclose(ours_, theirs_, 1e-12, 1e-12)) << part;
  }
}

TEST_F(LarsVelocity, LooksAheadAsMomentumSgdDoes) {
  step(1);
  step(0.5);
  auto later = ours_.clone(), later_plain = theirs_.clone();
  look_ahead(lars_, ours_, 1.5, 1, later);
  look_ahead(sgd_, theirs_, 1.5, 1, later_plain);
  EXPECT_TRUE(torch::allclose(later, later_plain, 1e-12, 1e-12));
  EXPECT_FALSE(torch::allclose(later, ours_));
}

}  // namespace
}  // namespace bimetal::optim
