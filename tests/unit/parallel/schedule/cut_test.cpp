#include "bimetal/parallel/schedule/cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/simulate.h"
#include "support/errors.h"

namespace bimetal::parallel::schedule {
namespace {

using Begins = std::vector<std::size_t>;
using Rows = std::vector<std::vector<double>>;

/// For units that take so many bytes on each stage, and stages that have so many.
FittingEnds fitting_by(const Rows& bytes, const std::vector<double>& memory) {
  return [=](std::size_t stage, std::size_t begin) {
    std::vector<bool> fit;
    double sum = 0;
    for (auto unit = begin; unit < bytes[stage].size(); ++unit) {
      sum += bytes[stage][unit];
      fit.push_back(sum <= memory[stage]);
    }
    return fit;
  };
}

TEST(Cut, AvoidsExpensiveCutsAndKeepsToMemory) {
  const CutProblem dear{
      .seconds = {{1, 1, 1, 1}, {1, 1, 1, 1}}, .send = Rows{{0, 9, 0, 0}}, .micro_batches = 8};
  EXPECT_NE(cut(dear).begins, (Begins{0, 2}));
  const Rows units(2, std::vector<double>(4, 10));
  CutProblem small{.seconds = {{1, 1, 1, 1}, {1, 1, 1, 1}},
                   .fitting = fitting_by(units, {10, 40}),
                   .micro_batches = 8};
  EXPECT_EQ(cut(small).begins, (Begins{0, 1}));
  small.fitting = fitting_by(units, {10, 20});
  expect_error(ErrorCode::OutOfMemory, {"4 units into 2 stages fits"}, [&] { cut(small); });
}

TEST(Cut, RefusesSendsOfTooFewStages) {
  const Rows units(3, std::vector<double>(6, 1));
  EXPECT_THROW(cut({.seconds = units, .send = Rows(1, std::vector<double>(6))}), Error);
}

TEST(Cut, RefusesMoreStagesThanUnits) {
  expect_error(ErrorCode::InvalidArgument, {"1 units cannot be cut into 2 stages"}, [&] {
    cut({.seconds = {{1}, {1}}});
  });
  EXPECT_THROW(cut({.seconds = {{1, 1}, {1}}}), Error);
}

TEST(Cut, RefusesAnAnswerThatLeavesEndsOut) {
  CutProblem problem{.seconds = {{1, 1, 1}, {1, 1, 1}}};
  problem.fitting = [](std::size_t, std::size_t) { return std::vector<bool>(2, true); };
  expect_error(ErrorCode::InvalidArgument, {"of 3 ends"}, [&] { cut(problem); });
}

// One unit more may need less: of units that are computed again in groups the last group stays.
TEST(Cut, TakesStagesThatFitThoughSmallerOnesDoNot) {
  const auto fitting = [](std::size_t stage, std::size_t begin) {
    std::vector<bool> fit;
    for (auto end = begin + 1; end <= 4; ++end) fit.push_back(stage > 0 || end == 3);
    return fit;
  };
  EXPECT_EQ(cut({.seconds = {{1, 1, 1, 1}, {1, 1, 1, 1}}, .fitting = fitting}).begins,
            (Begins{0, 3}));
}

std::vector<Begins> all_cuts(std::size_t units, std::size_t pieces) {
  std::vector<Begins> cuts;
  for (unsigned set = 0; set < 1u << (units - 1); ++set) {
    Begins begins = {0};
    for (std::size_t i = 1; i < units; ++i) {
      if (set >> (i - 1) & 1) begins.push_back(i);
    }
    if (begins.size() == pieces) cuts.push_back(std::move(begins));
  }
  return cuts;
}

// The best of all cuts, each of them tried.
double by_trying(const CutProblem& problem, const Rows& bytes, const std::vector<double>& memory) {
  const auto units = problem.seconds.front().size(), stages = problem.seconds.size();
  double best = 1e300;
  for (const auto& begins : all_cuts(units, stages)) {
    double longest = 0, sum = 0;
    bool fits = true;
    for (std::size_t s = 0; s < stages; ++s) {
      const auto end = s + 1 < stages ? begins[s + 1] : units;
      double seconds = s + 1 < stages ? problem.send[s][end - 1] : 0, needed = 0;
      for (auto u = begins[s]; u < end; ++u) {
        seconds += problem.seconds[s][u];
        needed += bytes[s][u];
      }
      fits = fits && needed <= memory[s];
      longest = std::max(longest, seconds);
      sum += seconds;
    }
    if (fits) best = std::min(best, (problem.micro_batches - 1) * longest + sum);
  }
  return best;
}

/// The same of several chunks, with room for everything.
double by_trying_chunks(const CutProblem& problem) {
  const auto units = problem.seconds.front().size(), stages = problem.seconds.size();
  const auto pieces = stages * static_cast<std::size_t>(problem.chunks);
  double best = 1e300;
  for (const auto& begins : all_cuts(units, pieces)) {
    std::vector<double> seconds(pieces);
    for (std::size_t p = 0; p < pieces; ++p) {
      const auto end = p + 1 < pieces ? begins[p + 1] : units;
      for (auto u = begins[p]; u < end; ++u) seconds[p] += problem.seconds[p % stages][u];
      if (p + 1 < pieces) seconds[p] += problem.send[p % stages][end - 1];
    }
    best = std::min(best, plain_bound(seconds, problem.micro_batches, stages));
  }
  return best;
}

// The way from the last stage to the first is crossed once, the others twice.
TEST(Cut, SeveralChunksComeByTheWayBackToo) {
  const std::vector<double> units(8, 1.0);
  const std::vector<double> near(8, 0), far = {9, 9, 9, 9, 0.5, 9, 9, 9};
  const auto found =
      cut({.seconds = {units, units}, .send = {near, far}, .micro_batches = 8, .chunks = 2});
  EXPECT_EQ(found.begins[2], 5u);
  EXPECT_THROW(cut({.seconds = {units, units}, .send = {near}, .chunks = 2}), Error);
  EXPECT_THROW(cut({.seconds = {units, units}, .chunks = 5}), Error);
}

TEST(Cut, PiecesFitIfAllOfAStageMayBeLikeThem) {
  const Rows units(2, std::vector<double>(8, 20));  // two of each
  CutProblem problem{.seconds = {{1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}},
                     .fitting = fitting_by(units, {20, 60}),
                     .micro_batches = 8,
                     .chunks = 2};
  EXPECT_EQ(cut(problem).begins, (Begins{0, 1, 4, 5}));
  problem.fitting = fitting_by(units, {20, 40});
  EXPECT_THROW(cut(problem), Error);
}

TEST(Cut, OfSeveralChunksIsNearlyTheBestOfAll) {
  std::mt19937 random(7);
  int exact = 0, all = 0;
  for (int i = 0; i < 200; ++i) {
    const auto stages = 2 + random() % 2, units = 2 * stages + random() % 7;
    CutProblem problem{
        .seconds = {}, .micro_batches = static_cast<int>(stages * (1 + random() % 4)), .chunks = 2};
    for (std::size_t s = 0; s < stages; ++s) {
      auto& row = problem.seconds.emplace_back();
      const double slow = static_cast<double>(1 + random() % 3);
      for (std::size_t u = 0; u < units; ++u) {
        row.push_back(slow * static_cast<double>(3 + random() % 5));
      }
      problem.send.emplace_back(units, static_cast<double>(random() % 3));
    }
    const double best = by_trying_chunks(problem), found = cut(problem).seconds;
    EXPECT_GE(found, best * (1 - 1e-12));
    EXPECT_LE(found, 1.05 * best);
    ++all;
    exact += found <= best * (1 + 1e-12) ? 1 : 0;
  }
  EXPECT_GE(exact, all * 9 / 10);
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
    CutProblem problem{.micro_batches = 1 + static_cast<int>(random() % 9)};
    const auto memory = row(stages, 20, 60);
    Rows bytes;
    for (std::size_t s = 0; s < stages; ++s) {
      const bool like_first = s > 0 && i % 2 == 0;
      problem.seconds.push_back(like_first ? problem.seconds[0] : row(units, 1, 9));
      bytes.push_back(like_first ? bytes[0] : row(units, 1, 9));
      if (s > 0) problem.send.push_back(row(units, 0, 4));
    }
    problem.fitting = fitting_by(bytes, memory);
    const double best = by_trying(problem, bytes, memory);
    if (best > 1e299) continue;
    EXPECT_DOUBLE_EQ(cut(problem).seconds, best);
  }
}

}  // namespace
}  // namespace bimetal::parallel::schedule
