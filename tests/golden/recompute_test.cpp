// What is computed again is what was computed before: trainings with recomputation end with the
// same bits as those without, for every way of sharing out the work.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "golden/training_run.h"

namespace bimetal::golden {
namespace {

struct RecomputeCase {
  std::string name;
  std::vector<std::vector<std::int64_t>> shares;
  std::int64_t micro_batch = 1000;
};

void PrintTo(const RecomputeCase& shown, std::ostream* out) {
  *out << shown.name;
}

const RecomputeCase recompute_cases[] = {
    {"OneWorker", {{24}}},
    {"OneWorkerInMicroBatches", {{24}}, 5},
    {"TwoWorkersOneAtRest", {{24, 0}, {5, 19}, {0, 24}}},
    {"ThreeWorkersInMicroBatches", {{13, 10, 1}, {0, 23, 1}, {8, 8, 8}}, 4},
};

class RecomputedTraining
    : public ::testing::TestWithParam<std::tuple<RecomputeCase, Learns, std::string>> {};

TEST_P(RecomputedTraining, HasTheSameBits) {
  const auto& [shown, learns, recompute] = GetParam();
  TrainingPlan plan{.learns = learns,
                    .optimizer = Optimizer::adam,
                    .shares = shown.shares,
                    .micro_batch = shown.micro_batch};
  const auto kept = train(plan);
  plan.recompute = recompute;
  const auto recomputed = train(plan);
  EXPECT_EQ(recomputed.losses, kept.losses);
  EXPECT_LT(kept.losses.back(), 0.97 * kept.losses.front());
  ASSERT_EQ(recomputed.parameters.size(), kept.parameters.size());
  for (std::size_t i = 0; i < kept.parameters.size(); ++i) {
    EXPECT_TRUE(recomputed.parameters[i].equal(kept.parameters[i])) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shares, RecomputedTraining,
                         ::testing::Combine(::testing::ValuesIn(recompute_cases),
                                            ::testing::Values(Learns::images, Learns::tokens),
                                            ::testing::Values("all", "2")),
                         [](const auto& param) {
                           return std::get<0>(param.param).name +
                                  (std::get<1>(param.param) == Learns::images ? "Images"
                                                                              : "TiedTokens") +
                                  (std::get<2>(param.param) == "all" ? "EachUnit" : "TwoUnits");
                         });

}  // namespace
}  // namespace bimetal::golden
