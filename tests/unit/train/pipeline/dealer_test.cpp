#include "bimetal/train/pipeline/dealer.h"

#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

std::vector<progress::RankFigures> told(const std::vector<double>& seconds) {
  std::vector<progress::RankFigures> figures;
  for (const auto one : seconds) figures.push_back({.compute_seconds = one});
  return figures;
}

/// What `check` makes of the mesh of rank 0 of a job with one stage on one rank, the next on two.
template <typename Check>
void with_mesh_of_three(const Check& check) {
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    const auto mesh = std::make_shared<const parallel::Mesh>(
        group, parallel::MeshShape{.stages = 2, .replicas = 0, .uneven = {1, 2}});
    if (rank == 0) check(mesh);
  });
}

TEST(Dealer, LearnsWhichReplicaIsFaster) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples(8, 3);
    Dealer dealer(mesh, {}, true);
    EXPECT_EQ(dealer.deal(samples).samples(1, 0), 12);
    dealer.learn(told({1, 1, 3}));
    EXPECT_EQ(dealer.deal(samples).samples(1, 0), 18);
    EXPECT_EQ(dealer.spread(samples).samples(1, 1), 6);
    Dealer fixed(mesh, {1, 1, 3}, false);
    fixed.deal(samples);
    fixed.learn(told({1, 1, 3}));
    EXPECT_EQ(fixed.deal(samples).samples(1, 1), 18);
  });
}

TEST(Dealer, RanksOfAReplicaAreAsFastAsTheSlowest) {
  testing::run_ranks(6, [&](int rank, comm::Group group) {
    const auto mesh = std::make_shared<const parallel::Mesh>(
        group, parallel::MeshShape{.stages = 2, .replicas = 2, .tensor = 2, .parts = {1, 2}});
    if (rank != 0) return;
    const std::vector<std::int64_t> samples(8, 3);
    Dealer dealer(mesh, {1, 1, 1, 2, 4, 5}, true);
    EXPECT_EQ(dealer.deal(samples).samples(1, 1), 18) << "what they do alone adds up";
    Dealer learning(mesh, {}, true);
    EXPECT_EQ(learning.deal(samples).samples(1, 0), 12);
    learning.learn(told({1, 1, 1, 3, 1, 0.5}));
    EXPECT_EQ(learning.deal(samples).samples(1, 1), 18);
  });
}

TEST(Dealer, TriesAgainWhoGetsNothing) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples(4, 1);
    Dealer dealer(mesh, {1, 1, 0.1}, true);
    int steps = 0;
    while (dealer.deal(samples).samples(1, 1) == 0 && steps < 200) {
      dealer.learn(told({4, 4, 0}));
      ++steps;
    }
    EXPECT_GT(steps, 5);
    EXPECT_LT(steps, 200);
  });
}

/// Of 500 steps of 16 micro-batches those in which the second of two replicas gets some, each of
/// which takes it `slower` times as long.
int trials_of(const std::shared_ptr<const parallel::Mesh>& mesh, double slower) {
  const std::vector<std::int64_t> samples(16, 1);
  Dealer dealer(mesh, {1, 1, 1 / slower}, true);
  int trials = 0;
  for (int step = 0; step < 500; ++step) {
    const auto deal = dealer.deal(samples);
    trials += deal.samples(1, 1) > 0 ? 1 : 0;
    const auto first = static_cast<double>(deal.samples(1, 0));
    dealer.learn(told({16, first, slower * static_cast<double>(deal.samples(1, 1))}));
  }
  return trials;
}

TEST(Dealer, SeldomTriesAgainWhoWasTooSlow) {
  with_mesh_of_three([](const auto& mesh) {
    for (const double slower : {20, 50}) {
      EXPECT_GE(trials_of(mesh, slower), 1);
      EXPECT_LE(trials_of(mesh, slower), 6);
    }
  });
}

TEST(Dealer, TakesBackWhoIsFasterAgain) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples(16, 1);
    Dealer dealer(mesh, {1, 1, 0.02}, true);
    while (dealer.deal(samples).samples(1, 1) == 0) dealer.learn(told({16, 16, 0}));
    dealer.learn(told({16, 15, 1}));
    EXPECT_EQ(dealer.deal(samples).samples(1, 1), 8);
  });
}

TEST(Dealer, TriesWhoWasNotMeasuredAndGetsNothing) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples = {1};
    Dealer dealer(mesh, {}, true);
    int steps = 0;
    while (dealer.deal(samples).samples(1, 1) == 0 && steps < 5) {
      dealer.learn(told({1, 1, 0}));
      ++steps;
    }
    EXPECT_GT(steps, 0);
    EXPECT_LT(steps, 5);
  });
}

TEST(Dealer, AWeightOfZeroIsNothing) {
  with_mesh_of_three([](const auto& mesh) {
    const std::vector<std::int64_t> samples(6, 1);
    EXPECT_EQ(Dealer(mesh, {1, 1, 0}, false).spread(samples).samples(1, 0), 6);
    EXPECT_EQ(Dealer(mesh, {1, 0, 1}, false).spread(samples).samples(1, 1), 6);
    EXPECT_EQ(Dealer(mesh, {1, 1, 0}, true).spread(samples).samples(1, 0), 3) << "not known";
    expect_error(ErrorCode::InvalidArgument,
                 {"leaves stage 1 of 2 to nobody: give one of "
                  "ranks 1 to 2 a weight above 0"},
                 [&] {
                   Dealer(mesh, {1, 0, 0}, false);
                 });
  });
}

TEST(Dealer, WantsASpeedForEachRank) {
  with_mesh_of_three([](const auto& mesh) {
    expect_error(ErrorCode::InvalidArgument, {"one for each of the 3 workers"}, [&] {
      Dealer(mesh, {1, 2}, false);
    });
  });
}

}  // namespace
}  // namespace bimetal::train
