#include "bimetal/data/batch_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/data/images/image_set.h"

namespace bimetal::data {
namespace {

using ::testing::ElementsAre;

/// Ten images whose only pixel and whose label are their number.
std::shared_ptr<const task::Dataset> numbered() {
  ImageDataset set;
  set.labels = torch::arange(10);
  set.images = torch::arange(10).to(torch::kUInt8).view({10, 1, 1, 1});
  return std::make_shared<ImageSet>(set, torch::kFloat32);
}

BatchFeed feed_of(std::shared_ptr<const task::Dataset> set, int rank, std::int64_t epochs) {
  return BatchFeed(std::move(set), EpochSampler(10, 1, /*shuffle=*/false), rank, 4, epochs,
                   torch::kCPU);
}

std::vector<std::int64_t> labels_of(const task::Values& batch) {
  const auto* first = batch.back().data_ptr<std::int64_t>();
  return {first, first + batch.back().size(0)};
}

const std::vector<std::int64_t> kOneAndThree = {1, 3};

TEST(BatchFeed, GivesThisRanksPartOfEachStep) {
  const auto set = numbered();
  auto feed = feed_of(set, 1, 1);
  feed.draw(kOneAndThree);
  EXPECT_THAT(labels_of(feed.take()), ElementsAre(1, 2, 3));
  feed.draw(std::vector<std::int64_t>{2, 2});
  EXPECT_THAT(labels_of(feed.take()), ElementsAre(6, 7));
}

/// Sample i weighs i + 1.
class Weighted : public task::Dataset {
 public:
  std::int64_t size() const override { return 10; }
  std::int64_t weight(std::int64_t sample) const override { return sample + 1; }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    return {torch::tensor(c10::ArrayRef<std::int64_t>(samples.data(), samples.size()))};
  }
};

TEST(BatchFeed, DealsSamplesOutByTheirWeight) {
  const auto set = std::make_shared<Weighted>();
  std::vector<std::int64_t> seen;
  for (int rank = 0; rank < 2; ++rank) {
    BatchFeed feed(set, make_sampler(*set, 1), rank, 4, 1, torch::kCPU);
    std::int64_t weight = 0, part = 0;
    for (feed.draw(std::vector<std::int64_t>{11, 11}); feed.next();
         feed.draw(std::vector<std::int64_t>{11, 11})) {
      const auto step = feed.next()->samples;
      weight += step.weight();
      part += step.weights[static_cast<std::size_t>(rank)];
      for (const auto sample : labels_of(feed.take())) seen.push_back(sample);
    }
    EXPECT_EQ(weight, 55) << "every sample once";
    EXPECT_NEAR(static_cast<double>(part), 27.5, 6);
  }
  std::ranges::sort(seen);
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(BatchFeed, EndsAfterTheLastEpoch) {
  const auto set = numbered();
  auto feed = feed_of(set, 0, 2);
  std::vector<bool> ends;
  std::int64_t samples = 0;
  for (feed.draw(kOneAndThree); feed.next(); feed.draw(kOneAndThree)) {
    ends.push_back(feed.next()->ends_epoch);
    samples += feed.next()->samples.total;
    feed.take();
  }
  EXPECT_THAT(ends, ElementsAre(false, false, true, false, false, true));
  EXPECT_EQ(samples, 20);
}

TEST(BatchFeed, DrawnStepStaysUntilItIsTaken) {
  const auto set = numbered();
  auto feed = feed_of(set, 0, 1);
  feed.draw(kOneAndThree);
  feed.draw(std::vector<std::int64_t>{4, 0});
  EXPECT_THAT(feed.next()->samples.counts, ElementsAre(1, 3));
}

TEST(BatchFeed, RewindGivesTheSameSamplesInOtherShares) {
  const auto set = numbered();
  auto feed = feed_of(set, 1, 1);
  feed.draw(kOneAndThree);
  feed.take();
  feed.draw(kOneAndThree);
  const auto plan = *feed.next();
  feed.take();
  feed.draw(kOneAndThree);  // the step after it, drawn ahead
  feed.rewind(plan.before);
  feed.draw(std::vector<std::int64_t>{3, 1});
  EXPECT_EQ(feed.next()->samples.indices, plan.samples.indices);
  EXPECT_THAT(labels_of(feed.take()), ElementsAre(7));
}

}  // namespace
}  // namespace bimetal::data
