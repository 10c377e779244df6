// Parts of tensors: where their elements are, and what two of them have in common.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "bimetal/checkpoint/parts/part_slices.h"
#include "bimetal/checkpoint/slices/tensor_index.h"

namespace bimetal::checkpoint {
namespace {

using Shape = std::vector<std::int64_t>;
using Runs = std::vector<checkpoint::Run>;  // Run is a function within a test

TEST(Slice, BoxesAreRunsOfRows) {
  EXPECT_EQ(runs_of({{1, 0}, {2, 3}}, Shape{4, 3}), (Runs{{3, 0, 6}}));
  EXPECT_EQ(runs_of({{1, 1}, {2, 2}}, Shape{4, 3}), (Runs{{4, 0, 2}, {7, 2, 2}}));
}

TEST(Slice, WhatLiesOutsideIsRefused) {
  EXPECT_TRUE(lies_in({{1, 1}, {2, 2}}, Shape{3, 3}));
  EXPECT_TRUE(lies_in(flat_range(8, 1), Shape{3, 3}));
  for (const Slice& slice : {Slice{{2, 1}, {2, 2}}, Slice{{-1, 0}, {1, 1}}, Slice{{0, 0}, {1, -1}},
                             flat_range(8, 2), Slice{{0, 0, 0}, {1, 1, 1}}, Slice{{0}, {1, 1}}}) {
    EXPECT_FALSE(lies_in(slice, Shape{3, 3}));
  }
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_FALSE(lies_in(flat_range(0, 1), Shape{huge, huge}));
}

/// The elements of a slice: their places in the tensor, by their places in the slice.
std::map<std::int64_t, std::int64_t> elements(const Slice& slice, const Shape& shape) {
  std::map<std::int64_t, std::int64_t> all;
  for (const auto& run : runs_of(slice, shape)) {
    for (std::int64_t i = 0; i < run.count; ++i) all[run.part + i] = run.whole + i;
  }
  return all;
}

TEST(Slice, OverlapsAreWhatBothHave) {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(end));
  };
  const auto any_slice = [&](const Shape& shape) {
    if (below(3) == 0) {
      const auto offset = below(elements_of(shape));
      return flat_range(offset, below(elements_of(shape) - offset + 1));
    }
    Slice slice;
    for (const auto length : shape) {
      slice.offset.push_back(below(length));
      slice.size.push_back(below(length - slice.offset.back() + 1));
    }
    return slice;
  };
  for (int round = 0; round < 300; ++round) {
    const Shape shape = {1 + below(4), 1 + below(4), 1 + below(4)};
    const auto from = any_slice(shape), to = any_slice(shape);
    const auto there = elements(from, shape), here = elements(to, shape);
    std::map<std::int64_t, std::int64_t> moved;  // place in `to`: in the tensor
    for (const auto& run : overlaps(from, to, shape)) {
      for (std::int64_t i = 0; i < run.count; ++i) moved[run.to + i] = there.at(run.from + i);
    }
    std::map<std::int64_t, std::int64_t> expected;
    for (const auto& [place, whole] : here) {
      for (const auto& [other, in_tensor] : there) {
        if (in_tensor == whole) expected[place] = whole;
      }
    }
    ASSERT_EQ(moved, expected) << "round " << round;
  }
}

using parallel::shard::Range;
using parallel::tensor::PartPlaces;

/// The elements of `whole` in `slice`, in its order.
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
