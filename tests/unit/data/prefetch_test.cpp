#include "bimetal/data/prefetch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::data {
namespace {

ImageDataset counting_set(std::int64_t size) {
  ImageDataset set;
  set.images =
      torch::arange(size).to(torch::kUInt8).reshape({size, 1, 1, 1}).expand({size, 1, 3, 5});
  set.images = set.images.contiguous();
  set.labels = torch::arange(size).remainder(10);
  return set;
}

torch::Tensor indices_of(const std::vector<std::int64_t>& indices) {
  return torch::tensor(indices, torch::kInt64);
}

template <typename Call>
ErrorCode code_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::Internal;
}

TEST(Prefetcher, BuildsWhatWasRequested) {
  const ImageDataset set = counting_set(20);
  Prefetcher prefetcher(set, torch::kFloat64, torch::kCPU);
  for (std::int64_t i = 0; i < 50; ++i) {
    const auto indices = indices_of({i % 20, (i * 7) % 20});
    prefetcher.request(indices);
    const Batch batch = prefetcher.take();
    const Batch expected = make_batch(set, indices, torch::kFloat64);
    EXPECT_TRUE(torch::equal(batch.x, expected.x));
    EXPECT_TRUE(torch::equal(batch.y, expected.y));
  }
}

TEST(Prefetcher, OutlivesTheCallersHandleOnTheData) {
  auto set = std::make_unique<ImageDataset>(counting_set(20));
  Prefetcher prefetcher(*set, torch::kFloat32, torch::kCPU);
  set.reset();
  prefetcher.request(indices_of({3}));
  EXPECT_EQ(prefetcher.take().y.item<std::int64_t>(), 3);
}

TEST(Prefetcher, RethrowsInTakeAndThenGoesOn) {
  Prefetcher prefetcher(counting_set(20), torch::kFloat32, torch::kCPU);
  prefetcher.request(indices_of({20}));
  EXPECT_EQ(code_of([&] { prefetcher.take(); }), ErrorCode::InvalidArgument);
  prefetcher.request(indices_of({19}));
  EXPECT_EQ(prefetcher.take().y.item<std::int64_t>(), 9);
}

TEST(Prefetcher, DiscardForgetsBatchesAndErrors) {
  Prefetcher prefetcher(counting_set(20), torch::kFloat32, torch::kCPU);
  prefetcher.discard();  // of nothing
  for (std::int64_t i = 0; i < 200; ++i) {
    prefetcher.request(indices_of({i % 40}));  // every second one fails
    prefetcher.discard();
    prefetcher.request(indices_of({7}));
    EXPECT_EQ(prefetcher.take().y.item<std::int64_t>(), 7);
  }
}

TEST(Prefetcher, RefusesCallsOutOfTurn) {
  Prefetcher prefetcher(counting_set(20), torch::kFloat32, torch::kCPU);
  EXPECT_EQ(code_of([&] { prefetcher.take(); }), ErrorCode::InvalidArgument);
  prefetcher.request(indices_of({1}));
  EXPECT_EQ(code_of([&] { prefetcher.request(indices_of({2})); }), ErrorCode::InvalidArgument);
  EXPECT_EQ(prefetcher.take().y.item<std::int64_t>(), 1);
  EXPECT_EQ(code_of([&] { prefetcher.take(); }), ErrorCode::InvalidArgument);
}

TEST(Prefetcher, EndsAtOnceWithARequestOutstanding) {
  const ImageDataset set = counting_set(20);
  for (int i = 0; i < 50; ++i) {
    Prefetcher prefetcher(set, torch::kFloat32, torch::kCPU);
    if (i % 2 == 0) prefetcher.request(torch::arange(20));
  }
}

}  // namespace
}  // namespace bimetal::data
