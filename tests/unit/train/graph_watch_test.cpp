#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>
#include <vector>

#include "bimetal/base/log.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Steps of a training whose task does `keep` with each loss; the warnings that come of it.
template <typename Keep>
std::vector<std::string> warnings_of(int steps, Keep keep) {
  std::vector<std::string> told;
  set_log_sink([&](LogLevel, std::string_view text) { told.emplace_back(text); },
               LogLevel::warning);
  const auto weight = torch::ones({3}, torch::requires_grad());
  GraphWatch watch;
  for (int step = 0; step < steps; ++step) {
    const auto loss = (weight * weight).sum();
    watch.saw(loss);
    keep(loss);
    loss.backward();
  }
  set_log_sink({});
  return told;
}

TEST(GraphWatch, SaysNothingOfLossesThatAreLetGo) {
  EXPECT_THAT(warnings_of(20, [](const torch::Tensor&) {}), ElementsAre());
}

TEST(GraphWatch, TheLastLossMayBeKept) {
  torch::Tensor last;
  EXPECT_THAT(warnings_of(20, [&](const torch::Tensor& loss) { last = loss; }), ElementsAre());
}

TEST(GraphWatch, DetachedLossesMayBeKept) {
  std::vector<torch::Tensor> all;
  EXPECT_THAT(warnings_of(20, [&](const auto& loss) { all.push_back(loss.detach()); }),
              ElementsAre());
}

TEST(GraphWatch, WarnsOnceOfAListOfLosses) {
  std::vector<torch::Tensor> all;
  EXPECT_THAT(warnings_of(20, [&](const auto& loss) { all.push_back(loss); }),
              ElementsAre(HasSubstr("loss.detach()")));
}

TEST(GraphWatch, WarnsOfASumOfLosses) {
  auto sum = torch::zeros({});
  EXPECT_THAT(warnings_of(20, [&](const auto& loss) { sum = sum + loss; }),
              ElementsAre(HasSubstr("memory grows")));
}

}  // namespace
}  // namespace bimetal::train
