#include "bimetal/optim/offload/disk_traffic.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <filesystem>
#include <stdexcept>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/optim/cpu_adam.h"
#include "bimetal/optim/offload/file_tensor.h"
#include "bimetal/optim/offload/plain_copy.h"
#include "support/temporary_folder.h"

namespace bimetal::optim {
namespace {

using std::chrono::milliseconds;

TEST(TransferMeter, TimeOfTransfersAtOnceCountsOnce) {
  TransferMeter meter;
  const auto sleep = [] { std::this_thread::sleep_for(milliseconds(50)); };
  const Stopwatch watch;
  std::vector<std::thread> transfers;
  for (int i = 0; i < 4; ++i) transfers.emplace_back([&] { meter.during(10, sleep); });
  for (auto& transfer : transfers) transfer.join();
  EXPECT_EQ(meter.total().bytes, 40U);
  EXPECT_GE(meter.total().seconds, 0.05);
  EXPECT_LE(meter.total().seconds, watch.seconds());
}

TEST(TransferMeter, WhatFailsHasMovedNothing) {
  TransferMeter meter;
  EXPECT_THROW(meter.during(10, [] { throw std::runtime_error("torn"); }), std::runtime_error);
  meter.during(7, [] {});
  EXPECT_EQ(meter.total().bytes, 7U);
}

TEST(PlainCopy, GoesThereAndBackAndLeavesNothing) {
  const test::TemporaryFolder folder;
  const std::uint64_t most = (20u << 20) + 5;
  const auto copy = copy_plainly(folder.path(), most, std::chrono::minutes(1));
  EXPECT_EQ(copy.written.bytes, most);
  EXPECT_EQ(copy.read.bytes, most);
  EXPECT_GT(copy.written.seconds, 0);
  EXPECT_GT(copy.read.seconds, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(PlainCopy, EndsEarlyOnASlowDisk) {
  const test::TemporaryFolder folder;
  const auto copy = copy_plainly(folder.path(), 64u << 20, milliseconds(0));
  EXPECT_EQ(copy.written.bytes, 0U);
  EXPECT_EQ(copy.read.bytes, 0U);
}

TEST(PlainCopy, WithoutRoomThereIsNone) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(copy_plainly(folder.path(), std::uint64_t{1} << 46, milliseconds(10)).read.bytes, 0U);
  EXPECT_THROW(copy_plainly(folder.path() / "nowhere", 1, milliseconds(10)), Error);
}

TEST(DiskTraffic, AnUpdateMovesBothMomentsOfWhatItSteps) {
  const test::TemporaryFolder folder;
  const std::vector<torch::Tensor> parameters = {torch::ones({3'000'001}), torch::ones({5}),
                                                 torch::ones({1000}, torch::kFloat64)};
  CpuAdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
  EXPECT_FALSE(optimizer.disk_traffic());
  optimizer.keep_on_disk(folder.path());
  ASSERT_TRUE(optimizer.disk_traffic());
  EXPECT_GE(optimizer.disk_traffic()->kept_bytes, 2 * (3'000'006U * 4 + 8000));
  EXPECT_EQ(optimizer.disk_traffic()->read.bytes, 0U);
  for (auto parameter : parameters) parameter.mutable_grad() = torch::ones_like(parameter);
  optimizer.step();
  auto unused = parameters[1];
  unused.mutable_grad() = torch::Tensor();
  optimizer.step();
  const auto traffic = *optimizer.disk_traffic();
  const std::uint64_t moved = 2 * 2 * (3'000'001U * 4 + 8000) + 2 * 5 * 4;
  EXPECT_EQ(traffic.read.bytes, moved);
  EXPECT_EQ(traffic.written.bytes, moved);
  EXPECT_GT(traffic.read.seconds, 0);
  EXPECT_GT(traffic.written.seconds, 0);
  EXPECT_GT(traffic.wait_seconds, 0);  // for the first chunk, at least
}

TEST(DiskTraffic, WhatIsBroughtCountsEachTime) {
  const test::TemporaryFolder folder;
  const auto file = std::make_shared<StateFile>(folder.path(), 2 * kFileTensorAlignment);
  FileTensor tensor(file, kFileTensorAlignment, 1000, torch::kFloat32);
  torch::Tensor(tensor.tensor()).fill_(3);
  tensor.let_go();
  tensor.bring();
  tensor.bring();  // is on its way
  tensor.arrive();
  EXPECT_EQ(file->brought().bytes, 4000U);
  EXPECT_TRUE(tensor.tensor().equal(torch::full({1000}, 3.0F)));
  tensor.let_go();
  tensor.arrive();  // nobody has sent for it
  EXPECT_EQ(file->brought().bytes, 8000U);
  EXPECT_TRUE(tensor.tensor().equal(torch::full({1000}, 3.0F)));
  FileTensor none;
  none.bring();
  none.arrive();
}

}  // namespace
}  // namespace bimetal::optim
