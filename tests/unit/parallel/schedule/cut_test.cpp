#include "bimetal/parallel/schedule/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "bimetal/base/error.h"

namespace bimetal::parallel::schedule {
namespace {

using Begins = std::vector<std::size_t>;
using ::testing::HasSubstr;

TEST(Cut, FollowsTheSpeedsOfUnlikeDevices) {
  EXPECT_EQ(cut({.seconds = {{1, 1, 1, 1}, {1, 1, 1, 1}}, .micro_batches = 8}).begins,
            (Begins{0, 2}));
  EXPECT_EQ(cut({.seconds = {{1, 1, 1, 1}, {3, 3, 3, 3}}, .micro_batches = 8}).begins,
            (Begins{0, 3}));
  EXPECT_EQ(cut({.seconds = {{3, 3, 3, 3}, {1, 1, 1, 1}}, .micro_batches = 8}).begins,
            (Begins{0, 1}));
}

TEST(Cut, AvoidsExpensiveCutsAndKeepsToMemory) {
  const CutProblem dear{
      .seconds = {{1, 1, 1, 1}, {1, 1, 1, 1}}, .send = {0, 9, 0, 0}, .micro_batches = 8};
  EXPECT_NE(cut(dear).begins, (Begins{0, 2}));
  const std::vector<double> units(4, 10);
  CutProblem small{.seconds = {{1, 1, 1, 1}, {1, 1, 1, 1}},
                   .bytes = {units, units},
                   .memory = {10, 40},
                   .micro_batches = 8};
  EXPECT_EQ(cut(small).begins, (Begins{0, 1}));
  small.memory = {10, 20};
  try {
    cut(small);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
    EXPECT_THAT(error.what(), HasSubstr("10 of 40, 20 of 40"));
  }
}

TEST(Cut, RefusesMoreStagesThanUnits) {
  try {
    cut({.seconds = {{1}, {1}}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("1 units cannot be cut into 2 stages"));
  }
  EXPECT_THROW(cut({.seconds = {{1, 1}, {1}}}), Error);
}

// What every cut there is comes to.
double by_trying(const CutProblem& problem) {
  const auto units = problem.seconds.front().size(), stages = problem.seconds.size();
  double best = 1e300;
  for (unsigned set = 0; set < 1u << (units - 1); ++set) {
    Begins begins = {0};
    for (std::size_t i = 1; i < units; ++i) {
      if (set >> (i - 1) & 1) begins.push_back(i);
    }
    if (begins.size() != stages) continue;
    double longest = 0, sum = 0;
    bool fits = true;
    for (std::size_t s = 0; s < stages; ++s) {
      const auto end = s + 1 < stages ? begins[s + 1] : units;
      double seconds = end < units ? problem.send[end - 1] : 0, bytes = 0;
      for (auto u = begins[s]; u < end; ++u) {
        seconds += problem.seconds[s][u];
        bytes += problem.bytes[s][u];
      }
      fits = fits && bytes <= problem.memory[s];
      longest = std::max(longest, seconds);
      sum += seconds;
    }
    if (fits) best = std::min(best, (problem.micro_batches - 1) * longest + sum);
  }
  return best;
}

TEST(Cut, IsTheBestOfAll) {
  std::mt19937 random(7);
  const auto row = [&](std::size_t size, int least, int most) {
    std::vector<double> numbers(size);
    for (auto& number : numbers) number = std::uniform_int_distribution(least, most)(random);
    return numbers;
  };
  for (int i = 0; i < 300; ++i) {
    const auto stages = 1 + random() % 4, units = stages + random() % 6;
    CutProblem problem{.send = row(units, 0, 4),
                       .memory = row(stages, 20, 60),
                       .micro_batches = 1 + static_cast<int>(random() % 9)};
    for (std::size_t s = 0; s < stages; ++s) {
      problem.seconds.push_back(row(units, 1, 9));
      problem.bytes.push_back(row(units, 1, 9));
    }
    const double best = by_trying(problem);
    if (best > 1e299) continue;
    EXPECT_DOUBLE_EQ(cut(problem).seconds, best);
  }
}

}  // namespace
}  // namespace bimetal::parallel::schedule
