#include "bimetal/task/segments.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/dropout.h"

namespace bimetal::task {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t width = 8, vocabulary = 11;

torch::Tensor some_ids() {
  return torch::arange(24).remainder(vocabulary).reshape({6, 4});
}

/// An embedding, blocks with dropout and a normalisation that counts batches, and a head that is
/// tied to the embedding.
struct Blocks {
  explicit Blocks(int count) {
    torch::manual_seed(4);
    const auto table = torch::nn::Embedding(vocabulary, width).ptr();
    model.units.push_back(make_unit(
        "embedding", table, [table](const torch::Tensor& ids) { return table->forward(ids); }));
    for (int i = 0; i < count; ++i) add_block(i);
    const auto weight = table->weight;
    model.units.push_back({.name = "head",
                           .parameters = {{"head.weight", weight}},
                           .forward = [weight](const Values& inputs) -> Values {
                             return {torch::linear(inputs.front(), weight)};
                           }});
  }

  void add_block(int number) {
    torch::nn::Sequential inner(torch::nn::Linear(width, 3 * width),
                                torch::nn::BatchNorm1d(3 * width), torch::nn::GELU(),
                                torch::nn::Dropout(0.3), torch::nn::Linear(3 * width, width));
    model.units.push_back(make_unit("block" + std::to_string(number), inner.ptr(),
                                    [this, number, inner](torch::Tensor x) mutable {
                                      events.push_back("forward " + std::to_string(number));
                                      return x + inner->forward(x.flatten(0, 1)).reshape(x.sizes());
                                    }));
  }

  Model model;
  std::vector<std::string> events;
};

struct Trained {
  Values gradients, buffers;
  torch::Tensor loss, drawn_next;
};

/// Two micro-batches, their gradients added up.
Trained train(std::size_t at_once, bool low_precision = false) {
  Blocks blocks(5);
  const Segments segments(blocks.model, at_once);
  Trained result;
  torch::manual_seed(9);
  for (int i = 0; i < 2; ++i) {
    at::autocast::set_autocast_enabled(at::kCPU, low_precision);
    const auto output = segments.run({some_ids().roll(i)}).front();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    result.loss = output.to(torch::kFloat32).square().sum();
    result.loss.backward();
  }
  for (const auto& parameter : blocks.model.parameters())
    result.gradients.push_back(parameter.grad());
  for (const auto& named : blocks.model.named_buffers()) result.buffers.push_back(named.tensor);
  result.drawn_next = torch::rand({4});
  return result;
}

void expect_same_bits(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "tensor " << i;
}

class Recomputed : public ::testing::TestWithParam<std::size_t> {};

// With dropout, running means, a tied tensor, and two micro-batches.
TEST_P(Recomputed, GradientsHaveTheSameBits) {
  const auto kept = train(0), recomputed = train(GetParam());
  EXPECT_TRUE(recomputed.loss.equal(kept.loss));
  expect_same_bits(recomputed.gradients, kept.gradients);
  expect_same_bits(recomputed.buffers, kept.buffers);
  EXPECT_TRUE(recomputed.drawn_next.equal(kept.drawn_next));
}

TEST_P(Recomputed, GradientsHaveTheSameBitsUnderAutocast) {
  const auto kept = train(0, true), recomputed = train(GetParam(), true);
  expect_same_bits(recomputed.gradients, kept.gradients);
  EXPECT_FALSE(kept.gradients[0].equal(train(0).gradients[0])) << "autocast was off";
}

INSTANTIATE_TEST_SUITE_P(Groups, Recomputed, ::testing::Values(1, 2, 3, 6, 7));

TEST(Segments, AreOfSoManyUnits) {
  const Blocks blocks(5);  // 7 units
  EXPECT_EQ(Segments(blocks.model, 0).recomputed(), 0u);
  EXPECT_EQ(Segments(blocks.model, 1).recomputed(), 6u);
  EXPECT_EQ(Segments(blocks.model, 3).recomputed(), 2u);
  EXPECT_EQ(Segments(blocks.model, 7).recomputed(), 0u);
}

TEST(Segments, HooksFireWhileGroupsBeforeAreStillToBeComputed) {
  Blocks blocks(3);
  for (std::size_t unit = 1; unit <= 3; ++unit) {
    for (const auto& [name, tensor] : blocks.model.units[unit].parameters) {
      if (!name.ends_with("0.weight")) continue;
      tensor.register_hook([&blocks, unit](const torch::Tensor&) {
        blocks.events.push_back("gradient " + std::to_string(unit - 1));
      });
    }
  }
  const auto output = Segments(blocks.model, 1).run({some_ids()}).front();
  EXPECT_THAT(blocks.events, ElementsAre("forward 0", "forward 1", "forward 2"));
  blocks.events.clear();
  output.sum().backward();
  EXPECT_THAT(blocks.events, ElementsAre("forward 2", "gradient 2", "forward 1", "gradient 1",
                                         "forward 0", "gradient 0"));
}

TEST(Segments, KeepNothingInsideOfAGroupButTheLast) {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> inner;
  Model model;
  for (int i = 0; i < 3; ++i) {
    const auto linear = torch::nn::Linear(width, width).ptr();
    model.units.push_back(
        make_unit("linear" + std::to_string(i), linear, [&inner, linear](const torch::Tensor& x) {
          const auto hidden = torch::sigmoid(linear->forward(x));  // its backward needs the result
          inner.emplace_back(hidden.storage().getWeakStorageImpl());
          return hidden.sin();
        }));
  }
  const auto held = [&] {
    std::vector<bool> alive;
    for (const auto& each : inner) alive.push_back(!each.expired());
    return alive;
  };
  const auto x = torch::ones({2, width});
  const auto output = Segments(model, 1).run({x}).front();
  EXPECT_THAT(held(), ElementsAre(false, false, true));
  inner.clear();
  const auto kept = Segments(model, 0).run({x}).front();
  EXPECT_THAT(held(), ElementsAre(true, true, true));
}

TEST(Segments, ComputeOnceWhereGradientsAreOff) {
  Blocks blocks(2);
  const torch::NoGradGuard no_grad;
  const auto output = Segments(blocks.model, 1).run({some_ids()}).front();
  EXPECT_FALSE(output.requires_grad());
  EXPECT_THAT(blocks.events, ElementsAre("forward 0", "forward 1"));
}

/// Units without modules, of one weight each.
Model model_of(const torch::Tensor& weight, std::function<Values(const Values&)> first) {
  Unit one{.name = "first", .parameters = {{"weight", weight}}, .forward = std::move(first)};
  Unit two{.name = "second", .parameters = {}, .forward = [](const Values& x) -> Values {
             return {x.front() * 2};
           }};
  return {{std::move(one), std::move(two)}};
}

template <typename Work>
std::string message_of(ErrorCode code, const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(Segments, RefuseUnitsThatChangeTheirInputs) {
  const auto weight = torch::ones({3}, torch::requires_grad());
  const auto model =
      model_of(weight, [=](const Values& x) -> Values { return {x.front().relu_() * weight}; });
  EXPECT_THAT(
      message_of(ErrorCode::Unsupported, [&] { Segments(model, 1).run({torch::ones({3})}); }),
      HasSubstr("unit 'first' changes its inputs in place"));
}

TEST(Segments, RefuseTensorsThatAUnitDoesNotList) {
  const auto weight = torch::ones({3}, torch::requires_grad());
  const auto hidden = torch::ones({3}, torch::requires_grad());
  const auto model =
      model_of(weight, [=](const Values& x) -> Values { return {x.front() * weight + hidden}; });
  const auto output = Segments(model, 1).run({torch::ones({3})}).front().sum();
  EXPECT_THAT(message_of(ErrorCode::InvalidArgument, [&] { output.backward(); }),
              HasSubstr("unit 'first' uses a trained tensor of shape [3]"));
}

TEST(Segments, RefuseDerivativesOfDerivatives) {
  const auto weight = torch::ones({3}, torch::requires_grad());
  const auto model =
      model_of(weight, [=](const Values& x) -> Values { return {x.front() * weight * weight}; });
  const auto output = Segments(model, 1).run({torch::ones({3})}).front().sum();
  EXPECT_THAT(message_of(ErrorCode::Unsupported,
                         [&] { torch::autograd::grad({output}, {weight}, {}, true, true); }),
              HasSubstr("derivatives of derivatives"));
}

// The last group is not computed again, and those before it have but first derivatives of what its
// gradients are made of.
TEST(Segments, SecondDerivativesAreTheSameOrRefused) {
  const auto values = [](double from) {
    return torch::linspace(from, from + 1, 9, torch::kFloat64).reshape({3, 3});
  };
  const auto penalised = [&](std::size_t at_once, std::size_t with_graph) {
    Values weights;
    Model model;
    for (int i = 0; i < 3; ++i) {
      weights.push_back(values(0.1 * i).set_requires_grad(true));
      model.units.push_back({.name = "unit" + std::to_string(i),
                             .parameters = {{"weight" + std::to_string(i), weights.back()}},
                             .forward = [w = weights.back()](const Values& x) -> Values {
                               return {torch::tanh(x.front().matmul(w))};
                             }});
    }
    const auto x = values(0.3).set_requires_grad(true);
    const auto loss = Segments(model, at_once).run({x}).front().square().sum();
    const auto of = with_graph < 3 ? weights[with_graph] : x;
    const auto gradient = torch::autograd::grad({loss}, {of}, {}, true, true).front();
    (loss + gradient.square().sum()).backward();
    Values found = {x.grad()};
    for (const auto& weight : weights) found.push_back(weight.grad());
    return found;
  };
  for (std::size_t with_graph = 0; with_graph < 4; ++with_graph) {
    for (const std::size_t at_once : {1, 2}) {
      if (with_graph == 2) {
        expect_same_bits(penalised(at_once, with_graph), penalised(0, with_graph));
        continue;
      }
      EXPECT_THAT(message_of(ErrorCode::Unsupported, [&] { penalised(at_once, with_graph); }),
                  HasSubstr("derivatives of derivatives"));
    }
  }
}

// Autograd's own check, which the parameters are handed over for.
TEST(Segments, NoticeParametersThatChangeBeforeBackward) {
  const auto weight = torch::ones({3}, torch::requires_grad());
  const auto model =
      model_of(weight, [=](const Values& x) -> Values { return {x.front() * weight}; });
  const auto output = Segments(model, 1).run({torch::ones({3})}).front().sum();
  {
    const torch::NoGradGuard no_grad;
    auto changed = weight;
    changed.add_(1);
  }
  EXPECT_THROW(output.backward(), c10::Error);
}

}  // namespace
}  // namespace bimetal::task
