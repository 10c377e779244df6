#include "bimetal/data/prefetch.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/data/images/image_set.h"
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

TEST(Prefetcher, BuildsWhatWasRequested) {
  const auto set = counting_set(20, torch::kFloat64);
  Prefetcher prefetcher(set, torch::kCPU);
  for (std::int64_t i = 0; i < 50; ++i) {
    const std::vector<std::int64_t> indices = {i % 20, (i * 7) % 20};
    prefetcher.request({.samples = indices});
    const auto batch = prefetcher.take();
    const Batch expected = make_batch(set->images(), torch::tensor(indices), torch::kFloat64);
    EXPECT_TRUE(torch::equal(batch.at(0), expected.x));
    EXPECT_TRUE(torch::equal(batch.at(1), expected.y));
  }
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

}  // namespace
}  // namespace bimetal::data
