#include "bimetal/device/host_allocator.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/csrc/api/include/torch/types.h>
#include <unistd.h>

#include <functional>
#include <thread>
#include <vector>

namespace bimetal::device {
namespace {

constexpr std::int64_t kOneMiB = 1 << 20;

/// Touched, so that its pages are there.
torch::Tensor touched(std::int64_t bytes) {
  return torch::ones({bytes}, torch::kUInt8);
}

TEST(HostAllocator, ATensorFromBeforeGoesBackWhereItCameFrom) {
  auto before = touched(4 * kOneMiB);  // where this test is the first of its process
  reuse_freed_tensors();
  before = touched(4 * kOneMiB);
  EXPECT_EQ(before.sum(torch::kInt64).item<std::int64_t>(), 4 * kOneMiB);
}

/// Minor page faults of this process in `work`.
long faults_of(const std::function<void()>& work) {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  work();
  getrusage(RUSAGE_SELF, &after);
  return after.ru_minflt - before.ru_minflt;
}

TEST(HostAllocator, TensorsOfALaterStepTouchNoNewPages) {
  reuse_freed_tensors();
  const auto step = [] {
    std::vector<torch::Tensor> held;
    for (const std::int64_t size : {48, 1, 2, 48}) held.push_back(touched(size * kOneMiB));
    touched(kOneMiB / 2);
  };
  // The first ones make the blocks, and the heap of what is small.
  for (int i = 0; i < 4; ++i) step();
  // Mapped anew, its 99.5 MiB would be 25,472 pages of 4 KiB, or 50 huge ones.
  EXPECT_LT(faults_of(step), 40);
}

TEST(HostAllocator, WhatIsGivenBackIsTheSystemsAgain) {
  reuse_freed_tensors();
  void* data = nullptr;
  {
    const auto tensor = touched(64 * kOneMiB);
    data = tensor.data_ptr();
  }
  unsigned char there = 0;
  ASSERT_EQ(mincore(data, 4096, &there), 0);
  EXPECT_EQ(there & 1, 1);  // kept
  give_back_freed_memory();
  ASSERT_EQ(mincore(data, 4096, &there), 0);
  EXPECT_EQ(there & 1, 0);
}

TEST(HostAllocator, AChildThatIsForkedMeanwhileMakesTensors) {
  reuse_freed_tensors();
  // Locks that no fork knows of guard the state that libtorch makes at its first tensor. A child
  // forked while a thread is in there would wait for ever, whatever the heap does.
  torch::empty({kOneMiB}, torch::kUInt8);
  std::vector<std::jthread> busy;
  for (int i = 0; i < 3; ++i) {
    busy.emplace_back([](const std::stop_token& stop) {
      while (!stop.stop_requested()) torch::empty({kOneMiB}, torch::kUInt8);
    });
  }
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a child that hangs ends by that signal
      torch::empty({kOneMiB}, torch::kUInt8);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

}  // namespace
}  // namespace bimetal::device
