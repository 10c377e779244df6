// The memory of a server's shard: used again, and never changed under those who still send it.

#include "bimetal/parallel/server/shard_store.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstring>
#include <limits>

#include "bimetal/parallel/server/codec.h"

namespace bimetal::parallel::server {
namespace {

constexpr std::int64_t kElements = 64;

/// A shard of one tensor, and what one device would make of it.
class ShardMemory : public ::testing::Test {
 protected:
  ShardMemory()
      : start_(torch::linspace(-1, 1, kElements)),
        plan_(plan_shards(std::vector<std::int64_t>{kElements}, std::vector<double>{1}, 24)),
        store_(plan_, 0, {start_}, sgd()),
        alone_(start_.clone()),
        optimizer_(sgd()({alone_})) {}

  static MakeOptimizer sgd() {
    return [](std::vector<torch::Tensor> parameters) {
      return std::make_unique<torch::optim::SGD>(parameters,
                                                 torch::optim::SGDOptions(0.1).momentum(0.9));
    };
  }

  /// One lease of which every gradient is `value`, applied; where its gradients lay.
  const std::byte* step(float value) {
    const std::uint64_t lease = ++version_;
    const std::byte* first = nullptr;
    for (std::uint32_t piece = 0; piece < plan_.pieces.size(); ++piece) {
      const auto count = static_cast<std::size_t>(plan_.pieces[piece].count);
      const auto dtype = static_cast<std::uint8_t>(comm::DType::float32);
      const auto place = store_.place(lease, piece, dtype, {comm::Scheme::none}, 4 * count);
      if (!first) first = place.data();
      std::fill_n(reinterpret_cast<float*>(place.data()), count, value);
      store_.received(lease, piece);
    }
    EXPECT_TRUE(store_.close_lease(lease, plan_.pieces.size()));
    store_.apply(version_, {1, 1, {lease}, {}});
    alone_.mutable_grad() = torch::full({kElements}, value);
    optimizer_->step();
    return first;
  }

  torch::Tensor start_;
  ShardPlan plan_;
  ShardStore store_;
  torch::Tensor alone_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::uint64_t version_ = 0;
};

TEST_F(ShardMemory, IsUsedAgainForTheNextStepsGradients) {
  const auto* const first = step(1);
  EXPECT_EQ(step(2), first);
  const void* const values = store_.values()->data_ptr();
  step(3);
  EXPECT_EQ(store_.values()->data_ptr(), values) << "nobody was looking";
}

TEST_F(ShardMemory, KeepsAVersionForThoseWhoStillSendIt) {
  const void* const gradients = step(1);
  auto kept = store_.values();
  const auto as_it_was = kept->clone();
  step(2);
  step(-1);
  EXPECT_TRUE(torch::equal(*kept, as_it_was));
  EXPECT_FALSE(torch::equal(*store_.values(), as_it_was));
  // The optimizer's state has gone along.
  EXPECT_TRUE(torch::equal(*store_.values(), alone_));
  EXPECT_TRUE(torch::equal(store_.piece_tensors()[0].flatten(), alone_.narrow(0, 0, 22)));
  const auto bytes = store_.bytes_of(plan_.pieces[1], *kept);
  EXPECT_EQ(std::memcmp(bytes.data(), as_it_was.data_ptr<float>() + plan_.pieces[1].shard_offset,
                        bytes.size()),
            0);
  const void* const old = kept->data_ptr();
  kept.reset();
  kept = store_.values();
  step(5);
  const void* const now = store_.values()->data_ptr();
  EXPECT_TRUE(now == old || now == gradients) << "no memory but what was used before";
  EXPECT_TRUE(torch::equal(*store_.values(), alone_));
}

TEST(PoolOfTensors, KeepsNoMoreThanItWasToldNorWhatIsInUse) {
  const auto pool = std::make_shared<TensorPool>(8, torch::kFloat64);
  auto first = pool->take(), second = pool->take(), third = pool->take();
  EXPECT_EQ(first.scalar_type(), torch::kFloat64);
  const auto view = first.narrow(0, 2, 3);
  pool->keep(2);
  pool->give_back(std::move(first));
  EXPECT_EQ(pool->waiting(), 0u) << "a view of it is left";
  pool->give_back(std::move(second));
  { const auto shared = pool->share(std::move(third)); }
  EXPECT_EQ(pool->waiting(), 2u);
  pool->give_back(torch::empty({8}, torch::kFloat64));
  EXPECT_EQ(pool->waiting(), 2u);
  pool->keep(1);
  EXPECT_EQ(pool->waiting(), 1u);
}

TEST(Finite, FindsEveryNumberThatIsNone) {
  using comm::all_finite;
  const auto check = [](auto zero) {
    using Value = decltype(zero);
    using Limits = std::numeric_limits<Value>;
    for (std::size_t size = 0; size < 40; ++size) {
      std::vector<Value> values(size, -Limits::max());
      if (size > 2) values[1] = Limits::denorm_min();
      EXPECT_TRUE(all_finite(std::span<const Value>(values)));
      for (std::size_t i = 0; i < size; ++i) {
        for (const Value bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                                -Limits::signaling_NaN()}) {
          const auto good = std::exchange(values[i], bad);
          EXPECT_FALSE(all_finite(std::span<const Value>(values))) << bad << " at " << i;
          values[i] = good;
        }
      }
    }
  };
  check(0.0f);
  check(0.0);
}

}  // namespace
}  // namespace bimetal::parallel::server
