// LARS and LAMB against their formulas, computed here element by element in double.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/optim/layer_wise.h"
#include "bimetal/optim/part_of_step.h"

namespace bimetal::optim {
namespace {

using Values = std::vector<double>;
using Shape = std::vector<std::int64_t>;

constexpr int kSteps = 6;

double length(const Values& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

Values some_weights(const Shape& shape) {
  std::int64_t count = 1;
  for (const auto size : shape) count *= size;
  Values values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(0.3 * std::cos(1.7 * double(i) + 0.4));
  return values;
}

Values some_gradient(std::size_t count, int step) {
  Values values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(std::sin(0.7 * double(i) + 1.3 * double(step)));
  }
  return values;
}

torch::Tensor tensor_of(const Values& values, const Shape& shape) {
  return torch::tensor(values, torch::kFloat64).reshape(shape);
}

/// A parameter that `optimizer` has taken over, so that tests can hand it gradients.
torch::Tensor parameter_of(const Values& values, const Shape& shape) {
  return tensor_of(values, shape).requires_grad_();
}

void expect_values(const torch::Tensor& tensor, const Values& expected) {
  const auto found = tensor.detach().flatten().contiguous();
  ASSERT_EQ(found.numel(), static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double scale = std::max(std::abs(expected[i]), 1e-3);
    EXPECT_NEAR(found.const_data_ptr<double>()[i], expected[i], 1e-13 * scale) << "element " << i;
  }
}

struct LarsByHand {
  Values w;
  bool adapted;
  double rate, momentum, decay, trust;
  Values v = Values(w.size(), 0.0);

  void step(const Values& g) {
    double lambda = 1, beta = 0;
    if (adapted) {
      beta = decay;
      const double w_length = length(w), g_length = length(g);
      if (w_length > 0 && g_length > 0) lambda = trust * w_length / (g_length + beta * w_length);
    }
    for (std::size_t i = 0; i < w.size(); ++i) {
      v[i] = momentum * v[i] + rate * lambda * (g[i] + beta * w[i]);
      w[i] -= v[i];
    }
  }
};

struct LambByHand {
  Values x;
  bool adapted;
  double rate, beta1, beta2, epsilon, decay;
  Values m = Values(x.size(), 0.0), v = m;
  int t = 0;

  void step(const Values& g) {
    ++t;
    Values u(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
      const double m_hat = m[i] / (1 - std::pow(beta1, t)), v_hat = v[i] / (1 - std::pow(beta2, t));
      u[i] = m_hat / (std::sqrt(v_hat) + epsilon) + (adapted ? decay * x[i] : 0);
    }
    const bool scaled = adapted && length(x) > 0 && length(u) > 0;
    const double ratio = scaled ? length(x) / length(u) : 1;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] -= rate * ratio * u[i];
  }
};

// A matrix, a kernel and what is exempt: a vector and a scalar.
const Shape kShapes[] = {{2, 3}, {3, 2, 2, 2}, {5}, {}};

TEST(Lars, FollowsItsFormula) {
  for (const auto& shape : kShapes) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double decay : {0.0, 0.1}) {
        LarsByHand expected{some_weights(shape), shape.size() > 1, 0.5, momentum, decay, 0.02};
        auto w = parameter_of(expected.w, shape);
        Lars lars({w},
                  LarsOptions(0.5).momentum(momentum).weight_decay(decay).trust_coefficient(0.02));
        for (int step = 1; step <= kSteps; ++step) {
          // The rate is part of what the momentum remembers, so it must not stay the same.
          expected.rate = 0.5 / step;
          lars.param_groups()[0].options().set_lr(expected.rate);
          const auto gradient = some_gradient(expected.w.size(), step);
          w.mutable_grad() = tensor_of(gradient, shape);
          expected.step(gradient);
          lars.step();
          expect_values(w, expected.w);
        }
      }
    }
  }
}

TEST(Lamb, FollowsItsFormula) {
  for (const auto& shape : kShapes) {
    for (const double decay : {0.0, 0.1}) {
      LambByHand expected{some_weights(shape), shape.size() > 1, 0.05, 0.8, 0.95, 1e-3, decay};
      auto x = parameter_of(expected.x, shape);
      Lamb lamb({x}, LambOptions(0.05).betas({0.8, 0.95}).eps(1e-3).weight_decay(decay));
      for (int step = 1; step <= kSteps; ++step) {
        const auto gradient = some_gradient(expected.x.size(), step);
        x.mutable_grad() = tensor_of(gradient, shape);
        expected.step(gradient);
        lamb.step();
        expect_values(x, expected.x);
      }
    }
  }
}

/// Some steps of matrices, kernels, vectors and scalars, several of them together or each by
/// itself.
template <typename Made, typename Options>
std::vector<torch::Tensor> after_steps(const Options& options, std::int64_t together) {
  std::vector<torch::Tensor> parameters;
  for (const auto& shape : {Shape{2, 3}, Shape{5}, Shape{3, 2, 2, 2}, Shape{}, Shape{4, 4}}) {
    std::int64_t count = 1;
    for (const auto size : shape) count *= size;
    parameters.push_back(
        (torch::arange(count, torch::kFloat64) * 0.3 + 0.1).cos().reshape(shape).requires_grad_());
  }
  Made made(parameters, options);
  made.set_together(together);
  for (int step = 1; step <= kSteps; ++step) {
    for (auto& parameter : parameters) {
      parameter.mutable_grad() = (parameter.detach() * step).sin();
    }
    if (step == 1) parameters[2].mutable_grad() = torch::Tensor();  // begins a step later
    made.step();
  }
  return parameters;
}

TEST(LargeBatchOptimizers, TensorsTogetherAreAsEachByItself) {
  const auto expect_alike = [](const auto& together, const auto& apart) {
    for (std::size_t i = 0; i < apart.size(); ++i) {
      EXPECT_TRUE(torch::allclose(together[i], apart[i], 1e-13, 1e-15)) << i;
    }
  };
  const auto lars = LarsOptions(0.5).momentum(0.9).weight_decay(0.1);
  const auto lamb = LambOptions(0.05).weight_decay(0.1);
  for (const std::int64_t together : {std::int64_t{12}, std::int64_t{1} << 20}) {
    expect_alike(after_steps<Lars>(lars, together), after_steps<Lars>(lars, 0));
    expect_alike(after_steps<Lamb>(lamb, together), after_steps<Lamb>(lamb, 0));
  }
}

TEST(LargeBatchOptimizers, AsManyTensorsTogetherAsElementsFit) {
  const std::vector<torch::Tensor> tensors = {torch::ones({4}), torch::ones({6}), torch::ones({2}),
                                              torch::ones({2}, torch::kFloat64)};
  EXPECT_EQ(at_once(tensors, 100), 3) << "of one type";
  EXPECT_EQ(at_once(tensors, 11), 2);
  EXPECT_EQ(at_once(tensors, 3), 1) << "one, however large";
  EXPECT_EQ(at_once(tensors, -1), 1) << "on a CPU";
}

TEST(Lars, TakesTheRatioOfAZeroNormAsOne) {
  const LarsOptions options = LarsOptions(0.5).momentum(0).weight_decay(0.1);
  auto w = parameter_of({0, 0, 0, 0}, {2, 2});
  w.mutable_grad() = tensor_of({1, -2, 3, 0}, {2, 2});
  Lars({w}, options).step();
  expect_values(w, {-0.5, 1, -1.5, 0});

  w = parameter_of({1, 2, 3, 4}, {2, 2});
  w.mutable_grad() = torch::zeros({2, 2}, torch::kFloat64);
  Lars({w}, options).step();
  expect_values(w, {0.95, 1.9, 2.85, 3.8});
}

TEST(Lamb, TakesTheRatioOfAZeroNormAsOne) {
  auto x = parameter_of({0, 0, 0, 0}, {2, 2});
  x.mutable_grad() = tensor_of({1, -2, 3, 0}, {2, 2});
  Lamb({x}, LambOptions(0.5).eps(0.5)).step();
  expect_values(x, {-0.5 / 1.5, 0.5 * 2 / 2.5, -0.5 * 3 / 3.5, 0});

  x = parameter_of({1, 2, 3, 4}, {2, 2});
  x.mutable_grad() = torch::zeros({2, 2}, torch::kFloat64);
  Lamb({x}, LambOptions(0.5)).step();
  expect_values(x, {1, 2, 3, 4});
}

TEST(LargeBatchOptimizers, KeepStateInTheParametersType) {
  for (const auto type : {torch::kFloat64, torch::kFloat32, torch::kBFloat16}) {
    auto w = torch::full({4, 4}, 0.5, type).requires_grad_();
    w.mutable_grad() = torch::ones({4, 4}, type);
    Lars lars({w}, LarsOptions(1).trust_coefficient(0.1));
    Lamb lamb({w}, LambOptions(0.1));
    lars.step();
    lamb.step();
    const void* key = w.unsafeGetTensorImpl();
    auto& velocity =
        static_cast<torch::optim::SGDParamState&>(*lars.state().at(const_cast<void*>(key)));
    auto& moments =
        static_cast<torch::optim::AdamParamState&>(*lamb.state().at(const_cast<void*>(key)));
    EXPECT_EQ(velocity.momentum_buffer().scalar_type(), type);
    EXPECT_EQ(moments.exp_avg().scalar_type(), type);
    EXPECT_EQ(moments.exp_avg_sq().scalar_type(), type);
    EXPECT_EQ(w.scalar_type(), type);
    // ½ − ½·0.1, then a tenth less.
    EXPECT_NEAR(w.mean().item<double>(), 0.45 * 0.9, type == torch::kBFloat16 ? 4e-3 : 1e-6);
  }
}

TEST(LargeBatchOptimizers, RefuseOptionsThatMakeNoSense) {
  const std::vector<torch::Tensor> some = {torch::ones({2, 2})};
  for (const auto& options : {LarsOptions(-1), LarsOptions(1).momentum(1),
                              LarsOptions(1).momentum(-0.1), LarsOptions(1).weight_decay(-1),
                              LarsOptions(1).trust_coefficient(-1), LarsOptions(std::nan(""))}) {
    EXPECT_THROW(Lars(some, options), Error);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(some, std::make_unique<LarsOptions>(options));
    EXPECT_THROW(Lars(groups, LarsOptions(1)), Error);
  }
  for (const auto& options :
       {LambOptions(-1), LambOptions(1).betas({1, 0.9}), LambOptions(1).betas({0.9, -0.1}),
        LambOptions(1).eps(-1), LambOptions(1).weight_decay(-1)}) {
    EXPECT_THROW(Lamb(some, options), Error);
  }
}

/// Sets the number of torch's threads while it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  int before_;
};

// Ranks of one job have unlike numbers of threads and must keep equal parameters.
TEST(TrustRatio, NormsDoNotDependOnTheNumberOfThreads) {
  for (const auto& shape :
       {Shape{1, 300000}, Shape{300000, 1}, Shape{640, 512}, Shape{64, 32, 3, 3}, Shape{10, 128}}) {
    const auto tensor = torch::randn(shape);
    const auto norm_with = [&](int threads) {
      const Threads set(threads);
      return norm_of(tensor).item<double>();
    };
    const double alone = norm_with(1);
    for (const int threads : {2, 3, 8}) EXPECT_EQ(norm_with(threads), alone) << shape;
  }
}

TEST(TrustRatio, NormsOfLargeTensorsAreAccurate) {
  const auto tensor = torch::randn({2000, 3000}) + 0.5;
  const auto exact = tensor.to(torch::kFloat64).square().sum().sqrt().item<double>();
  EXPECT_NEAR(norm_of(tensor).item<double>() / exact, 1, 1e-6);
}

TEST(TrustRatio, NormsOf16BitTensorsDoNotOverflow) {
  EXPECT_NEAR(norm_of(torch::full({16, 16}, 6e4, torch::kFloat16)).item<double>(), 16 * 6e4, 1);
  EXPECT_EQ(norm_of(torch::empty({0, 4})).item<double>(), 0);
}

// LARS on a parameter server. For tensors of one dimension it is plain momentum SGD, with which it
// is compared.
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
