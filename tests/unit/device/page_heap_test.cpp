#include "bimetal/device/page_heap.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace bimetal::device {
namespace {

/// Beside a plain set of numbers, in any order.
TEST(PageRuns, AreWhatASetOfNumbersIs) {
  std::mt19937 random(7);
  PageRuns runs;
  std::set<std::size_t> plain;
  for (int i = 0; i < 4000; ++i) {
    const PageRun run{random() % 60, 1 + random() % 12};
    std::size_t here = 0;
    for (auto page = run.first; page < run.end(); ++page) here += plain.contains(page);
    if (here == 0 && random() % 2) {
      runs.add(run);
      for (auto page = run.first; page < run.end(); ++page) plain.insert(page);
    } else {
      ASSERT_EQ(runs.remove(run), here);
      for (auto page = run.first; page < run.end(); ++page) plain.erase(page);
    }
    ASSERT_EQ(runs.pages(), plain.size());
    if (!plain.empty()) {
      ASSERT_EQ(runs.last()->end(), *plain.rbegin() + 1);
    }
  }
}

constexpr std::size_t kMega = 1 << 20;
constexpr std::size_t kRoom = 1 << 30;
constexpr std::size_t kSpareBytes = 16 * kMega;

TEST(PageHeap, WhatIsFreedServesWhoComesNext) {
  PageHeap heap(kRoom);
  void* first = heap.take(3 * kMega);
  ASSERT_TRUE(heap.owns(first));
  std::memset(first, 1, 3 * kMega);
  heap.give_back(first);
  EXPECT_FALSE(heap.owns(first));
  auto* again = static_cast<char*>(heap.take(2 * kMega));
  EXPECT_EQ(again, first);
  EXPECT_EQ(again[100], 1);  // the same pages
  EXPECT_EQ(heap.use().kept, kMega);
  heap.give_back(again);
}

TEST(PageHeap, HardlyMoreIsHeldThanWasInUseAtSomeTime) {
  PageHeap heap(kRoom);
  std::mt19937 random(3);
  std::vector<void*> taken;
  for (int i = 0; i < 3000; ++i) {
    if (taken.size() < 20 && random() % 2) {
      taken.push_back(heap.take((1 + random() % 40) * kMega / 4));
      ASSERT_TRUE(taken.back());
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      heap.give_back(taken.back());
      taken.pop_back();
    }
    const auto use = heap.use();
    ASSERT_LE(use.in_use + use.kept, use.most_in_use + use.most_in_use / 16 + kSpareBytes);
  }
  for (void* block : taken) heap.give_back(block);
}

TEST(PageHeap, HoldsNoMoreWhereThereIsNoRoom) {
  PageHeap heap(kRoom);
  heap.limit_spare(0);
  void* small = heap.take(2 * kMega);
  void* large = heap.take(6 * kMega);
  heap.give_back(small);
  void* other = heap.take(3 * kMega);  // does not fit into what is free
  EXPECT_EQ(heap.use().most_in_use, 9 * kMega);
  EXPECT_EQ(heap.use().kept, 0u);
  heap.give_back(other), heap.give_back(large);
}

TEST(PageHeap, DropLeavesWhatIsInUse) {
  PageHeap heap(kRoom);
  auto* used = static_cast<char*>(heap.take(2 * kMega));
  std::memset(used, 1, 2 * kMega);
  void* freed = heap.take(7 * kMega);
  std::memset(freed, 1, 7 * kMega);
  heap.give_back(freed);
  heap.drop();
  EXPECT_EQ(heap.use().kept, 0u);
  EXPECT_EQ(heap.use().most_in_use, 2 * kMega);
  EXPECT_EQ(used[kMega], 1);
  auto* fresh = static_cast<char*>(heap.take(7 * kMega));
  EXPECT_EQ(fresh[kMega], 0);  // not those pages
  heap.give_back(fresh), heap.give_back(used);
}

TEST(PageHeap, MoreThanThereIsGivesNothing) {
  PageHeap heap(kRoom);
  EXPECT_EQ(heap.take(2 * kRoom), nullptr);
  PageHeap nowhere(std::numeric_limits<std::size_t>::max() / 2);
  EXPECT_EQ(nowhere.take(kMega), nullptr);
  EXPECT_FALSE(nowhere.owns(&nowhere));
}

TEST(PageHeap, ThreadsShareIt) {
  PageHeap heap(kRoom);
  std::atomic<bool> whole = true;
  std::vector<std::jthread> threads;
  for (int id = 1; id <= 4; ++id) {
    threads.emplace_back([&, id] {
      for (int i = 0; i < 300; ++i) {
        const auto bytes = (1 + (i * id) % 3) * (kMega / 4);
        auto* block = static_cast<unsigned char*>(heap.take(bytes));
        std::memset(block, id, bytes);
        if (block[0] != id || block[bytes - 1] != id) whole = false;
        heap.give_back(block);
      }
    });
  }
  threads.clear();
  EXPECT_TRUE(whole);
  EXPECT_EQ(heap.use().in_use, 0u);
}

}  // namespace
}  // namespace bimetal::device
