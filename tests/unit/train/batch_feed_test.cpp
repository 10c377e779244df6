#include "bimetal/train/batch_feed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace bimetal::train {
namespace {

using ::testing::ElementsAre;

/// Ten images whose only pixel and whose label are their number.
data::ImageDataset numbered() {
  data::ImageDataset set;
  set.labels = torch::arange(10);
  set.images = torch::arange(10).to(torch::kUInt8).view({10, 1, 1, 1});
  return set;
}

BatchFeed feed_of(const data::ImageDataset& set, int rank, std::int64_t epochs) {
  return BatchFeed(set, data::EpochSampler(10, 1, /*shuffle=*/false), rank, epochs, torch::kFloat32,
                   torch::kCPU);
}

std::vector<std::int64_t> labels_of(const data::Batch& batch) {
  const auto* first = batch.y.data_ptr<std::int64_t>();
  return {first, first + batch.y.size(0)};
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
}  // namespace bimetal::train
