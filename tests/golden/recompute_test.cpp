// What is computed again is what was computed before: trainings with recomputation end with the
// same bits as those without, for every way of sharing out the work.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>
#include <tuple>

#include "golden/rows.h"

namespace bimetal::golden {
namespace {

using RecomputeRow = std::tuple<Ranks, Learns, std::string /* train.recompute */>;

std::string name_of_recompute(const ::testing::TestParamInfo<RecomputeRow>& info) {
  const auto& [who, learns, recompute] = info.param;
  return std::string(learns == Learns::images ? "Cnn" : "TokensTied") +
         (recompute == "all" ? "EachUnit" : "TwoUnits") + "By" + who.name;
}

class Recomputed : public ::testing::TestWithParam<RecomputeRow> {};

TEST_P(Recomputed, HasTheSameBits) {
  const auto& [who, learns, recompute] = GetParam();
  TrainingPlan plan{.learns = learns,
                    .optimizer = Optimizer::adam,
                    .shares = who.shares,
                    .micro_batch = who.micro_batch};
  const auto kept = train(plan);
  plan.recompute = recompute;
  const auto recomputed = train(plan);
  EXPECT_EQ(recomputed.losses, kept.losses);
  ASSERT_EQ(recomputed.parameters.size(), kept.parameters.size());
  for (std::size_t i = 0; i < kept.parameters.size(); ++i) {
    EXPECT_TRUE(recomputed.parameters[i].equal(kept.parameters[i])) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, Recomputed,
                         ::testing::Combine(::testing::ValuesIn(ranks()),
                                            ::testing::Values(Learns::images, Learns::tokens),
                                            ::testing::Values("all", "2")),
                         name_of_recompute);

}  // namespace
}  // namespace bimetal::golden
