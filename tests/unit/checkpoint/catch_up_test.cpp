// Ranks that come later get what the others have learnt, from all of them at once.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <memory>
#include <vector>

#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/starting_point.h"
#include "small_net.h"
#include "support/thread_ranks.h"

namespace bimetal::checkpoint {
namespace {

constexpr std::chrono::seconds kTimeout{20};
constexpr std::int64_t kHidden = 70'000;  // of some tensors several slices

/// A rank that has made some steps, or none.
struct Rank {
  explicit Rank(int steps, std::int64_t hidden = 4, bool channels_last = false)
      : net((torch::manual_seed(1), hidden)), adam(net.parameters(), 0.01) {
    net.to(torch::kFloat64);
    if (channels_last) {
      const torch::NoGradGuard no_grad;
      auto& weight = net.conv->weight;
      weight.set_data(weight.contiguous(torch::MemoryFormat::ChannelsLast).transpose(2, 3));
    }
    for (int step = 1; step <= steps; ++step) update(step);
    state.step = steps;
  }

  void update(int step) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(step));
    const auto x = torch::randn({2, 1, 4, 4}, generator, torch::kFloat64);
    adam.zero_grad();
    net.forward(x).square().mean().backward();
    adam.step();
  }

  SmallNet net;
  torch::optim::Adam adam;
  TrainingState state;
};

void catch_up_with(const comm::Group& group, Rank& rank, const std::vector<bool>& behind) {
  rank.state = catch_up(group, behind, rank.state, rank.net, rank.adam, kTimeout);
}

void expect_same(Rank& a, Rank& b) {
  expect_equal(copy_of(a.net), copy_of(b.net));
  expect_equal(optimizer_tensors(a.adam, a.net), optimizer_tensors(b.adam, b.net));
  EXPECT_EQ(a.state.step, b.state.step);
}

TEST(CatchUp, WhoIsNewOrBehindGoesOnLikeTheOthers) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const int steps : {0, 3, 2, 3}) ranks.push_back(std::make_unique<Rank>(steps));
  testing::run_ranks(4, [&](int number, comm::Group group) {
    auto& rank = *ranks[static_cast<std::size_t>(number)];
    catch_up_with(group, rank, {true, false, true, false});
  });
  Rank alone(3);
  for (const auto& rank : ranks) expect_same(*rank, alone);
  alone.update(4);
  for (const auto& rank : ranks) {
    rank->update(4);
    expect_equal(copy_of(rank->net), copy_of(alone.net));
  }
}

/// Values that the senders do not have in common show where each slice is from.
TEST(CatchUp, EachOfTheOthersSendsItsPart) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int number = 0; number < 3; ++number) {
    ranks.push_back(std::make_unique<Rank>(0, kHidden));
    const torch::NoGradGuard no_grad;
    for (const auto& tensor : ranks.back()->net.parameters()) tensor.fill_(number);
    for (const auto& tensor : ranks.back()->net.buffers()) tensor.fill_(number);
  }
  testing::run_ranks(3, [&](int number, comm::Group group) {
    catch_up_with(group, *ranks[static_cast<std::size_t>(number)], {false, true, false});
  });
  const auto& net = ranks[1]->net;
  const auto values = net.conv->weight.detach().flatten();
  EXPECT_TRUE((values == 0).any().item<bool>());
  EXPECT_TRUE((values == 2).any().item<bool>());
  EXPECT_FALSE((values == 1).any().item<bool>());
  for (const auto& buffer : net.buffers()) EXPECT_EQ(buffer.abs().sum().item<double>(), 0);
}

TEST(CatchUp, TensorsMayLieInAnyOrderInMemory) {
  Rank trained(2, kHidden), fresh(0, kHidden, /*channels_last=*/true);
  ASSERT_FALSE(fresh.net.conv->weight.is_contiguous());
  testing::run_ranks(2, [&](int number, comm::Group group) {
    catch_up_with(group, number == 0 ? fresh : trained, {true, false});
  });
  expect_same(fresh, trained);
}

}  // namespace
}  // namespace bimetal::checkpoint
