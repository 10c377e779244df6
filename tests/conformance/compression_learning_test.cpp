// The promise of error feedback: nothing is lost for good, and training ends where it would have.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "conformance/schemes.h"
#include "conformance/transports.h"

namespace bimetal::testing {
namespace {

using comm::buffer;
using comm::CompressedAllReduce;
using comm::CompressedAllReduceOptions;
using comm::Compression;
using comm::Group;
using comm::NamedValues;
using comm::ReduceOp;
using comm::Scheme;

constexpr std::size_t kCount = 1537;

class Feedback : public OnWorlds {
 protected:
  // If some ranks share memory, only messages between these islands are compressed.
  comm::CompressedLinks links() const {
    return GetParam().transport == Transport::islands ? comm::CompressedLinks::between_islands
                                                      : comm::CompressedLinks::all;
  }
};

// A gradient with a direction that stays and noise that does not; tiny elements among large ones.
std::vector<float> noisy_gradient(int rank, int step) {
  std::mt19937 random(static_cast<unsigned>(1000 * step + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] = (i % 10 == 0 ? 1.0f : 0.01f) * (0.3f + normal(random));
  }
  return values;
}

double norm(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// After any number of steps: what was applied + what all ranks still owe = what there was to apply.
TEST_P(Feedback, NothingIsLostForGood) {
  on_ranks([&](int rank, Group group) {
    for (const Scheme scheme : kSchemes) {
      for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
        CompressedAllReduce reduce(
            group,
            {.compression = {.scheme = scheme, .links = links(), .density = 0.01, .rank = 2}});
        std::vector<double> open(kCount), all(kCount);
        const double share = op == ReduceOp::avg ? 1.0 / group.size() : 1;
        for (int step = 0; step < 30; ++step) {
          for (int r = 0; r < group.size(); ++r) {
            const auto theirs = noisy_gradient(r, step);
            for (std::size_t i = 0; i < kCount; ++i) open[i] += double{theirs[i]} * share;
            for (std::size_t i = 0; i < kCount; ++i) all[i] += double{theirs[i]} * share;
          }
          auto data = noisy_gradient(rank, step);
          reduce.all_reduce("weights", buffer(data), op).wait();
          for (std::size_t i = 0; i < kCount; ++i) open[i] -= double{data[i]};
        }
        for (const auto& [name, values] : reduce.whole_state()) {
          if (name != "weights.residual") continue;
          for (std::size_t i = 0; i < kCount; ++i) open[i] -= double{values[i]} * share;
        }
        EXPECT_LT(norm(open), 1e-4 * norm(all)) << to_string(scheme) << ", " << to_string(op);
      }
    }
  });
}

// And what is owed stays bounded, so that the applied sum comes relatively closer and closer.
TEST_P(Feedback, TheAppliedSumConverges) {
  on_ranks([&](int rank, Group group) {
    if (group.size() == 1) return;
    for (const Scheme scheme : {Scheme::int4, Scheme::topk, Scheme::powersgd, Scheme::sign}) {
      const Compression how{.scheme = scheme, .links = links(), .density = 0.1, .rank = 4};
      CompressedAllReduce with(group, {.compression = how});
      CompressedAllReduce without(group, {.compression = how, .error_feedback = false});
      std::vector<double> exact(kCount), fed(kCount), plain(kCount);
      double early = 0;
      const auto error = [&](const std::vector<double>& sum) {
        auto difference = exact;
        for (std::size_t i = 0; i < kCount; ++i) difference[i] -= sum[i];
        return norm(difference) / norm(exact);
      };
      for (int step = 0; step < 200; ++step) {
        for (int r = 0; r < group.size(); ++r) {
          const auto theirs = noisy_gradient(r, step);
          for (std::size_t i = 0; i < kCount; ++i) exact[i] += double{theirs[i]};
        }
        auto a = noisy_gradient(rank, step), b = a;
        with.all_reduce("weights", buffer(a)).wait();
        without.all_reduce("weights", buffer(b)).wait();
        for (std::size_t i = 0; i < kCount; ++i) fed[i] += double{a[i]};
        for (std::size_t i = 0; i < kCount; ++i) plain[i] += double{b[i]};
        if (step == 19) early = error(fed);
      }
      EXPECT_LT(error(fed), 0.4 * early) << to_string(scheme);
      if (scheme == Scheme::int4) continue;  // hardly biased
      EXPECT_LT(error(fed), error(plain)) << to_string(scheme);
    }
  });
}

// With momentum correction the applied updates are those of momentum on every rank, delayed.
TEST_P(Feedback, MomentumIsThatOfEachElement) {
  on_ranks([&](int rank, Group group) {
    // One element is large every third step; sent every step it would move by plain momentum.
    CompressedAllReduce sparse(
        group,
        {.compression = {.scheme = Scheme::topk, .links = links(), .density = 1, .momentum = 0.5}});
    std::vector<float> data = {1};
    sparse.all_reduce("w", buffer(data), ReduceOp::avg).wait();
    EXPECT_EQ(data[0], 1.0f);
    data = {1};
    sparse.all_reduce("w", buffer(data), ReduceOp::avg).wait();
    // Masking ends the momentum of what has been sent; a rank alone sends nothing.
    EXPECT_EQ(data[0], group.size() == 1 ? 1.5f : 1.0f);

    CompressedAllReduce waiting(
        group, {.compression = {
                    .scheme = Scheme::topk, .links = links(), .density = 0.5, .momentum = 0.5}});
    if (group.size() == 1) return;
    for (int step = 0; step < 2; ++step) {
      std::vector<float> pair = {10, 1};
      waiting.all_reduce("w", buffer(pair), ReduceOp::avg).wait();
      EXPECT_EQ(pair, (std::vector<float>{10, 0}));
    }
    // The second element's momentum went on while it was held back: 1 + (0.5 + 1) + (0.75 + 1).
    std::vector<float> pair = {0, 1};
    waiting.all_reduce("w", buffer(pair), ReduceOp::avg).wait();
    EXPECT_EQ(pair, (std::vector<float>{0, 4.25f}));
  });
}

TEST_P(Feedback, StateComesBack) {
  on_ranks([&](int rank, Group group) {
    for (const Scheme scheme : kSchemes) {
      const CompressedAllReduceOptions options{
          .compression = {
              .scheme = scheme, .links = links(), .density = 0.01, .momentum = 0.5, .rank = 2}};
      const auto step = [&](CompressedAllReduce& reduce, int number) {
        auto data = noisy_gradient(rank, number);
        reduce.all_reduce("a", buffer(data)).wait();
        return data;
      };
      CompressedAllReduce first(group, options);
      step(first, 0);
      step(first, 1);
      CompressedAllReduce second(group, options);
      second.set_state(first.state());
      EXPECT_EQ(second.state(), first.state());
      EXPECT_EQ(step(second, 2), step(first, 2)) << to_string(scheme);
      // The sum of all error feedback is the same on every rank, and stays so when it is shared
      // out.
      const auto whole = first.whole_state();
      CompressedAllReduce third(group, options);
      third.set_whole_state(whole);
      const auto again = third.whole_state();
      ASSERT_EQ(again.size(), whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(again[i].name, whole[i].name);
        for (std::size_t k = 0; k < whole[i].values.size(); ++k) {
          ASSERT_NEAR(again[i].values[k], whole[i].values[k], 1e-4);
        }
      }
      first.reset(group);
      EXPECT_TRUE(first.state().empty());
      step(first, 3);  // and works on
    }
    CompressedAllReduce reduce(group, {.compression = {.scheme = Scheme::int8, .links = links()}});
    const NamedValues stranger[] = {{"a.colour", {1}}};
    EXPECT_THROW(reduce.set_state(stranger), Error);
  });
}

// Logistic regression on points of two classes, each rank with points of its own.
double trained_loss(int rank, Group group, const CompressedAllReduceOptions* options) {
  constexpr std::size_t kFeatures = 64, kPoints = 100;
  constexpr int kSteps = 300;
  std::mt19937 shared(5), own(static_cast<unsigned>(rank) + 100);
  std::normal_distribution<float> normal;
  std::vector<float> truth(kFeatures);
  for (float& x : truth) x = normal(shared);
  std::vector<float> points(kPoints * kFeatures), labels(kPoints);
  for (std::size_t p = 0; p < kPoints; ++p) {
    float score = 2 * normal(own);  // noise: the classes overlap
    for (std::size_t i = 0; i < kFeatures; ++i) {
      points[p * kFeatures + i] = normal(own);
      score += truth[i] * points[p * kFeatures + i];
    }
    labels[p] = score > 0 ? 1 : 0;
  }

  std::optional<CompressedAllReduce> compressed;
  if (options) compressed.emplace(group, *options);
  std::vector<float> weights(kFeatures), result(kFeatures + 1);
  for (int step = 0; step <= kSteps; ++step) {
    std::ranges::fill(result, 0.0f);
    for (std::size_t p = 0; p < kPoints; ++p) {
      const float* x = points.data() + p * kFeatures;
      float score = 0;
      for (std::size_t i = 0; i < kFeatures; ++i) score += weights[i] * x[i];
      const float miss = 1 / (1 + std::exp(-score)) - labels[p];
      for (std::size_t i = 0; i < kFeatures; ++i) result[i] += miss * x[i] / kPoints;
      result[kFeatures] += std::log1p(std::exp(labels[p] > 0 ? -score : score)) / kPoints;
    }
    if (step == kSteps) break;
    const std::span slope(result.data(), kFeatures);
    if (compressed) {
      compressed->all_reduce("weights", buffer(slope), ReduceOp::avg).wait();
    } else {
      group.all_reduce(buffer(slope), ReduceOp::avg).wait();
    }
    for (std::size_t i = 0; i < kFeatures; ++i) weights[i] -= 0.1f * slope[i];
  }
  group.all_reduce(buffer(result), ReduceOp::avg).wait();
  return double{result[kFeatures]};
}

TEST_P(Feedback, TrainingReachesTheSameLoss) {
  on_ranks([&](int rank, Group group) {
    const double exact = trained_loss(rank, group, nullptr);
    ASSERT_LT(exact, 0.45);  // from ln 2
    for (const Scheme scheme : kSchemes) {
      const CompressedAllReduceOptions options{
          .compression = {.scheme = scheme, .links = links(), .density = 0.05, .rank = 1}};
      EXPECT_NEAR(trained_loss(rank, group, &options), exact, 0.01) << to_string(scheme);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Feedback,
                         ::testing::Values(World{Transport::in_process, 1},
                                           World{Transport::in_process, 2},
                                           World{Transport::tcp, 3}),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace bimetal::testing
