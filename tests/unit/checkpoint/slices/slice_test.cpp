// Parts of tensors: where their elements are, and what two of them have in common.

#include "bimetal/checkpoint/slices/slice.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace bimetal::checkpoint {
namespace {

using Shape = std::vector<std::int64_t>;
using Runs = std::vector<checkpoint::Run>;  // Run is a function within a test

TEST(Slice, WholeAndFlatOnesAreOneRun) {
  EXPECT_EQ(runs_of(whole_slice(Shape{2, 3}), Shape{2, 3}), (Runs{{0, 0, 6}}));
  EXPECT_EQ(runs_of(flat_range(2, 3), Shape{2, 3}), (Runs{{2, 0, 3}}));
  EXPECT_EQ(runs_of(whole_slice(Shape{}), Shape{}), (Runs{{0, 0, 1}}));
  EXPECT_EQ(runs_of(flat_range(0, 1), Shape{}), (Runs{{0, 0, 1}}));
  EXPECT_TRUE(runs_of(flat_range(4, 0), Shape{2, 3}).empty());
}

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

}  // namespace
}  // namespace bimetal::checkpoint
