#include "bimetal/data/prefetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/images/dataset.h"
#include "support/errors.h"

namespace bimetal::data {
namespace {

std::shared_ptr<const ImageSet> counting_set(std::int64_t size,
                                             torch::Dtype dtype = torch::kFloat32) {
  ImageDataset set;
  set.images =
      torch::arange(size).to(torch::kUInt8).reshape({size, 1, 1, 1}).expand({size, 1, 3, 5});
  set.images = set.images.contiguous();
  set.labels = torch::arange(size).remainder(10);
  return std::make_shared<ImageSet>(std::move(set), dtype);
}

TEST(Prefetcher, OutlivesTheCallersHandleOnTheData) {
  auto set = counting_set(20);
  Prefetcher prefetcher(set, torch::kCPU);
  set.reset();
  prefetcher.request({.samples = {3}});
  EXPECT_EQ(prefetcher.take().at(1).item<std::int64_t>(), 3);
}

TEST(Prefetcher, RethrowsInTakeAndThenGoesOn) {
  Prefetcher prefetcher(counting_set(20), torch::kCPU);
  prefetcher.request({.samples = {20}});
  EXPECT_EQ(code_of([&] { prefetcher.take(); }), ErrorCode::InvalidArgument);
  prefetcher.request({.samples = {19}});
  EXPECT_EQ(prefetcher.take().at(1).item<std::int64_t>(), 9);
}

TEST(Prefetcher, DiscardForgetsBatchesAndErrors) {
  Prefetcher prefetcher(counting_set(20), torch::kCPU);
  prefetcher.discard();  // of nothing
  for (std::int64_t i = 0; i < 200; ++i) {
    prefetcher.request({.samples = {i % 40}});  // every second one fails
    prefetcher.discard();
    prefetcher.request({.samples = {7}});
    EXPECT_EQ(prefetcher.take().at(1).item<std::int64_t>(), 7);
  }
}

TEST(Prefetcher, RefusesCallsOutOfTurn) {
  Prefetcher prefetcher(counting_set(20), torch::kCPU);
  EXPECT_EQ(code_of([&] { prefetcher.take(); }), ErrorCode::InvalidArgument);
  prefetcher.request({.samples = {1}});
  EXPECT_EQ(code_of([&] { prefetcher.request({.samples = {2}}); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(prefetcher.take().at(1).item<std::int64_t>(), 1);
  EXPECT_EQ(code_of([&] { prefetcher.take(); }), ErrorCode::InvalidArgument);
}

TEST(Prefetcher, EndsAtOnceWithARequestOutstanding) {
  const auto set = counting_set(20);
  for (int i = 0; i < 50; ++i) {
    Prefetcher prefetcher(set, torch::kCPU);
    if (i % 2 == 0) prefetcher.request({.samples = std::vector<std::int64_t>(20, 3)});
  }
}

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
