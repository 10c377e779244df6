// Messages between stages in fewer bytes: their values, their size, and the agreement that they
// need.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/pipeline/link.h"
#include "support/thread_ranks.h"

namespace bimetal::parallel::pipeline {
namespace {

using comm::CompressedLinks;
using comm::Scheme;
using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr MeshShape kTwoStages{2, 1, 1};

ActivationCompression by(Scheme scheme) {
  return {.scheme = scheme, .links = CompressedLinks::all};
}

/// A stage's work.
using OfStage = std::function<void(int stage, Link& link)>;

void on_two_stages(const ActivationCompression& first, const ActivationCompression& second,
                   const OfStage& body) {
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    const Mesh mesh(std::move(group), kTwoStages);
    Link link(mesh, torch::kCPU, {20s}, rank == 0 ? first : second);
    body(rank, link);
  });
}

torch::Tensor activations(int seed) {
  torch::manual_seed(seed);
  return torch::randn({4, 32, 128});
}

/// The values that the second stage gets, and the bytes that the first one has sent.
std::pair<task::Values, std::int64_t> sent_through(Scheme scheme, const task::Values& values) {
  std::pair<task::Values, std::int64_t> result;
  on_two_stages(by(scheme), by(scheme), [&](int stage, Link& link) {
    const MessageName name{1, true, 0, 0};
    if (stage == 1) {
      result.first = *link.expect(0, name).wait();
    } else {
      link.send({1}, name, values);
      link.flush();
      result.second = link.bytes_sent();
    }
  });
  return result;
}

TEST(ActivationCompression, RoundsWhatGradientsFlowThroughAndNothingElse) {
  const auto values = activations(1).requires_grad_();
  const auto mask = torch::full({4, 1, 32, 32}, -1e9).tril(-1);
  const auto ids = torch::arange(128).view({4, 32});
  const auto [got, bytes] = sent_through(Scheme::int8, {values, mask, ids, torch::Tensor()});
  ASSERT_EQ(got.size(), 4u);
  EXPECT_TRUE(got[0].requires_grad());
  EXPECT_FALSE(got[0].equal(values));
  const auto largest = values.detach().abs().amax(-1, true);  // of each block of 128
  EXPECT_TRUE(((got[0] - values).detach().abs() <= largest * (1.01 / 254)).all().item<bool>());
  EXPECT_TRUE(got[1].equal(mask));
  EXPECT_TRUE(got[2].equal(ids));
  EXPECT_FALSE(got[3].defined());
}

TEST(ActivationCompression, SendsAsFewBytesAsTheSchemeSays) {
  const task::Values values = {activations(1).requires_grad_()};
  const auto whole = static_cast<std::int64_t>(values.front().nbytes());
  const auto short_ones = sent_through(Scheme::int8, values).second;
  EXPECT_NEAR(static_cast<double>(whole) / static_cast<double>(short_ones), 3.94, 0.01);
  EXPECT_EQ(2 * sent_through(Scheme::bfloat16, values).second, whole);
  const auto [got, bytes] = sent_through(Scheme::none, values);
  EXPECT_TRUE(got.front().equal(values.front()));
  EXPECT_EQ(bytes, whole);
  // Values of two bytes stay as they are.
  const task::Values half = {values.front().detach().to(torch::kBFloat16).requires_grad_()};
  EXPECT_TRUE(sent_through(Scheme::float16, half).first.front().equal(half.front()));
}

/// The first stage's gradients, a step for each half of these.
std::vector<torch::Tensor> received(Scheme scheme, double loss_factor,
                                    const std::vector<torch::Tensor>& gradients) {
  std::vector<torch::Tensor> got;
  on_two_stages(by(scheme), by(scheme), [&](int stage, Link& link) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      link.begin_step(loss_factor);
      const MessageName name{i < gradients.size() / 2 ? 1 : 2, false, 1, static_cast<int>(i)};
      if (stage == 1) {
        link.send_like({0}, name, {gradients[i]});
      } else {
        got.push_back(link.expect_like(1, name, {gradients[i]}).wait()->front());
        EXPECT_FALSE(got.back().requires_grad());
      }
    }
    link.flush();
  });
  return got;
}

/// The sum of gradients of so many samples each: one large element and small ones, which int8 would
/// round to 0 every time.
torch::Tensor sum_of_small(int even, int odd) {
  std::vector<torch::Tensor> gradients;
  for (int i = 0; i < 100; ++i) {
    gradients.push_back(torch::full({i % 2 == 0 ? even : odd, 128}, 0.001));
    gradients.back().select(1, 5).fill_(1);
  }
  auto sum = torch::zeros({even, 128});
  for (const auto& part : received(Scheme::int8, 1, gradients)) {
    sum.narrow(0, 0, part.size(0)).add_(part);
  }
  return sum;
}

TEST(ActivationCompression, WhatIsLostOfGradientsGoesWithLaterMicroBatches) {
  constexpr double kStep = 1.1 / 127;
  const auto sum = sum_of_small(3, 3);
  EXPECT_NEAR(sum.select(1, 5).max().item<double>(), 100, kStep);
  EXPECT_NEAR(sum.select(1, 6).max().item<double>(), 0.1, kStep);
  EXPECT_NEAR(sum.select(1, 6).min().item<double>(), 0.1, kStep);
  // Smaller micro-batches leave alone what they have no samples for.
  const auto unequal = sum_of_small(3, 2);
  EXPECT_NEAR(unequal[1][6].item<double>(), 0.1, kStep);
  EXPECT_NEAR(unequal[2][6].item<double>(), 0.05, kStep);
}

// Gradients of means over many tokens are below what float16 knows, scaled ones may be above.
TEST(ActivationCompression, GradientsAreShortenedInUnitsOfTheirLoss) {
  for (const double factor : {1e-9, 3e4}) {
    const auto gradient = activations(3) * factor;
    const auto got = received(Scheme::float16, factor, {gradient}).front();
    EXPECT_TRUE(torch::allclose(got, gradient, 1e-3, 1e-3 * factor)) << factor;
  }
}

TEST(ActivationCompression, ANaNArrivesAndIsForgotten) {
  const auto good = torch::ones({3, 128});
  auto bad = good.clone();
  bad[0][7] = std::numeric_limits<float>::quiet_NaN();
  const auto got = received(Scheme::int8, 1, {bad, good});
  EXPECT_TRUE(got[0][0].isnan().all().item<bool>());
  EXPECT_TRUE(torch::allclose(got[0][1], good[1], 0, 0.01));
  EXPECT_TRUE(torch::allclose(got[1], good, 0, 0.02));
}

TEST(ActivationCompression, StagesThatDisagreeAreNamed) {
  std::string told;
  on_two_stages(by(Scheme::int8), by(Scheme::none), [&](int stage, Link& link) {
    const MessageName name{1, true, 0, 0};
    if (stage == 0) return link.send({1}, name, {activations(1).requires_grad_()});
    try {
      link.expect(0, name).wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::CallMismatch);
      told = error.what();
    }
  });
  EXPECT_THAT(told, AllOf(HasSubstr("stage 1 of 2 (rank 1)"), HasSubstr("stage 0 of 2 (rank 0)"),
                          HasSubstr("\"int8\""), HasSubstr("\"none\"")));
}

TEST(ActivationCompression, LeavesAloneWhatStaysOnAHost) {
  const ActivationCompression slow{.scheme = Scheme::int8};
  const comm::Topology hosts{{{0, 1}, {2}}};
  const MeshShape three{3, 1, 1};
  EXPECT_EQ(scheme_between(three, hosts, 0, 1, slow), Scheme::none);
  EXPECT_EQ(scheme_between(three, hosts, 1, 2, slow), Scheme::int8);
  EXPECT_EQ(scheme_between(three, hosts, 0, 1, by(Scheme::int8)), Scheme::int8);
  // Parts of tensors are computed with the same activations.
  const MeshShape parts{2, 1, 2};
  const comm::Topology crossed{{{0, 2}, {1}, {3}}};
  EXPECT_EQ(scheme_between(parts, crossed, 0, 2, slow), Scheme::int8);
  EXPECT_EQ(scheme_between(parts, crossed, 1, 3, slow), Scheme::int8);
  EXPECT_EQ(scheme_between(parts, comm::Topology{{{0, 1, 2, 3}}}, 1, 3, slow), Scheme::none);
  const MeshShape unlike{.stages = 2, .tensor = 2, .parts = {1, 2}};
  EXPECT_EQ(scheme_between(unlike, comm::Topology{{{0, 1}, {2}}}, 0, 1, slow), Scheme::int8);
  EXPECT_EQ(scheme_between(unlike, comm::Topology{{{0, 1, 2}}}, 0, 1, slow), Scheme::none);
}

TEST(ActivationCompression, KnowsNoSchemesThatLeaveElementsOut) {
  EXPECT_THROW(on_two_stages(by(Scheme::topk), by(Scheme::topk), [](int, Link&) {}), Error);
}

}  // namespace
}  // namespace bimetal::parallel::pipeline
