#include "bimetal/checkpoint/parts/part_slices.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <numeric>
#include <vector>

#include "bimetal/checkpoint/parts/kept_pieces.h"

namespace bimetal::checkpoint {
namespace {

using parallel::shard::Range;
using parallel::tensor::PartPlaces;

/// What `slice` has of `whole`, in its order.
std::vector<std::int64_t> read(const torch::Tensor& whole, const Slice& slice) {
  std::vector<std::int64_t> values;
  const auto flat = whole.flatten();
  for (const auto& run : runs_of(slice, whole.sizes())) {
    for (auto i = run.whole; i < run.whole + run.count; ++i) {
      values.push_back(flat[i].item<std::int64_t>());
    }
  }
  return values;
}

torch::Tensor join(const torch::Tensor& whole, const KeptBlock& block) {
  std::vector<torch::Tensor> slices;
  for (const auto& slice : block.slices) {
    EXPECT_TRUE(lies_in(slice, whole.sizes()));
    slices.push_back(torch::tensor(read(whole, slice)).view(slice.size));
  }
  const auto joined = torch::cat(slices, block.dim);
  EXPECT_EQ(joined.sizes().vec(), block.shape);
  return joined.flatten();
}

struct Case {
  std::vector<std::int64_t> sizes;
  PartPlaces where;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {{12}, {0, {{2, 3}}}},
      {{12}, {0, {{0, 2}, {4, 2}, {8, 2}}}},     // a fused bias
      {{9, 4}, {0, {{1, 2}, {4, 2}, {7, 2}}}},   // fused, by columns
      {{5, 6}, {1, {{2, 3}}}},                   // by rows
      {{4, 12}, {1, {{1, 2}, {5, 2}, {9, 2}}}},  // fused the other way
      {{3, 5, 4}, {1, {{2, 2}}}},
      {{2, 3, 6}, {2, {{0, 2}, {3, 2}}}},
  };
  return all;
}

TEST(PartSlices, AnyRangeOfAPartIsFoundInTheWhole) {
  for (const auto& [sizes, where] : cases()) {
    const auto count =
        std::reduce(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
    const auto whole = torch::arange(count).view(sizes);
    std::vector<torch::Tensor> places;
    for (const auto& [first, length] : where.places) {
      places.push_back(whole.narrow(where.dim, first, length));
    }
    const auto part = torch::cat(places, where.dim);
    EXPECT_TRUE(join(whole, block_of_part(sizes, where)).equal(part.flatten()));
    for (std::int64_t first = 0; first < part.numel(); ++first) {
      for (std::int64_t length = 1; first + length <= part.numel(); ++length) {
        std::vector<torch::Tensor> found;
        for (const auto& block : blocks_of_part(sizes, where, {first, length})) {
          found.push_back(join(whole, block));
        }
        ASSERT_TRUE(torch::cat(found).equal(part.flatten().narrow(0, first, length)))
            << part.sizes() << " from " << first << ", " << length;
      }
    }
  }
}

// A checkpoint's index would grow with the matrix otherwise.
TEST(PartSlices, WholeRowsAreOneBox) {
  const PartPlaces rows{1, {{100, 300}}};
  EXPECT_EQ(blocks_of_part({1000, 800}, rows, {0, 300'000}).size(), 1u);
  const auto some = blocks_of_part({1000, 800}, rows, {150, 200'000});
  ASSERT_EQ(some.size(), 3u);
  EXPECT_EQ(some[1].slices, (std::vector<Slice>{{{1, 100}, {666, 300}}}));
}

// A shard of whole rows of a part is a box, and yet has the shard's own form.
TEST(PartSlices, WhatIsReadHasTheFormOfWhatIsKept) {
  const auto whole = torch::arange(30).view({5, 6});
  const KeptPiece shard{
      "w", {5, 6}, blocks_of_part({5, 6}, {1, {{2, 3}}}, {0, 15}), torch::empty({15})};
  ASSERT_EQ(shard.blocks.size(), 1u);
  const auto read = join_slices(shard, [&](const Slice& wanted) {
    return whole.narrow(0, wanted.offset[0], wanted.size[0])
        .narrow(1, wanted.offset[1], wanted.size[1]);
  });
  EXPECT_TRUE(read.equal(whole.narrow(1, 2, 3).flatten()));
}

}  // namespace
}  // namespace bimetal::checkpoint
