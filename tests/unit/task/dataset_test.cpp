#include "bimetal/task/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/task/task.h"

namespace bimetal::task {
namespace {

using ::testing::ElementsAre;

/// Sample i is i, and weighs `weight` of it.
class Numbers : public Dataset {
 public:
  explicit Numbers(std::int64_t heavier) : heavier_(heavier) {}
  std::int64_t size() const override { return 4; }
  std::int64_t weight(std::int64_t sample) const override { return 1 + heavier_ * sample; }
  Values batch(std::span<const std::int64_t> samples) const override {
    const auto numbers = torch::tensor(c10::ArrayRef<std::int64_t>(samples.data(), samples.size()));
    return {numbers, numbers + 10, numbers + 20};
  }

 private:
  std::int64_t heavier_;
};

class Sums : public Task {
 public:
  Model make_model() const override { return {}; }
  std::shared_ptr<const Dataset> training() const override { return nullptr; }
  torch::Tensor loss_sum(const Values& outputs, const Values&) const override {
    return outputs.front().sum();
  }
};

TEST(Dataset, WeightsAreListedUnlessAllAreOne) {
  EXPECT_THAT(weights_of(Numbers(0)), ElementsAre());
  EXPECT_THAT(weights_of(Numbers(2)), ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(weight_of(Numbers(2), 1, 3), 8);
  EXPECT_EQ(weight_of(Numbers(2), 3, 3), 0);
}

TEST(Dataset, BatchesAreCutAlongTheirSamples) {
  const auto batch = batch_of(Numbers(0), 1, 4);
  EXPECT_EQ(samples_of(batch), 3);
  const auto piece = slice(batch, 1, 3);
  EXPECT_TRUE(piece[1].equal(torch::tensor({12, 13}, torch::kInt64)));
  EXPECT_EQ(samples_of({}), 0);
}

TEST(Task, GivesItsModelAllButTheTargets) {
  const auto batch = batch_of(Numbers(0), 0, 2);
  const auto inputs = Sums().inputs(batch);
  ASSERT_EQ(inputs.size(), 2u);
  EXPECT_TRUE(inputs[1].is_same(batch[1]));
  EXPECT_TRUE(Sums().inputs({}).empty());
}

}  // namespace
}  // namespace bimetal::task
