// The CPU's part of staging; accelerators take the same calls through libtorch's own interface.
#include "bimetal/device/staging.h"

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/device/stream_timer.h"
#include "support/manual_device.h"

namespace bimetal::device {
namespace {

TEST(CopyMark, WithoutAnEventHasAlwaysBeenPassed) {
  const CopyMark mark;
  EXPECT_TRUE(mark.passed());
  EXPECT_NO_THROW(mark.wait(Deadline::after(std::chrono::seconds(0))));
}

TEST(CopyMark, IsPassedWhenTheDeviceGetsThere) {
  const CopyMark mark(testing::ManualDevice::record());
  EXPECT_FALSE(mark.passed());
  EXPECT_THROW(mark.wait(Deadline::after(std::chrono::milliseconds(10))), Error);
  testing::ManualDevice::run_queue();
  EXPECT_TRUE(mark.passed());
  EXPECT_NO_THROW(mark.wait(Deadline::after(std::chrono::seconds(0))));
}

TEST(HostStaging, CopiesBothWaysAndHasEndedAtTheMark) {
  HostStaging staging(torch::kCPU);
  const auto source = torch::arange(6, torch::kFloat32).reshape({2, 3});
  const auto host = host_buffer(6, torch::kFloat32, torch::kCPU).view({2, 3});
  staging.to_host(source, host);
  EXPECT_TRUE(staging.mark_to_host().passed());
  EXPECT_TRUE(host.equal(source));

  auto target = torch::zeros({2, 3});
  staging.to_device(host, target);
  EXPECT_TRUE(staging.mark_to_device().passed());
  EXPECT_TRUE(target.equal(source));
}

TEST(HostStaging, KeepsLogicalOrderAcrossStrides) {
  HostStaging staging(torch::kCPU);
  const auto source = torch::arange(96, torch::kFloat32).reshape({2, 3, 4, 4});
  const auto host = torch::zeros({2, 3, 4, 4});
  staging.to_host(source.contiguous(torch::MemoryFormat::ChannelsLast), host);
  EXPECT_TRUE(host.equal(source));
}

TEST(ReadTogether, AllNumbersInTheirOrder) {
  const auto one = torch::full({}, 0.1, torch::kFloat64), half = torch::full({2}, 0.5);
  const auto loss = torch::full({1, 1}, 3.0, torch::requires_grad());
  EXPECT_EQ(read_together({one, half, loss}), (std::vector<double>{0.1, 0.5, 0.5, 3}));
  EXPECT_EQ(read_together({half}), (std::vector<double>{0.5, 0.5}));
  EXPECT_TRUE(read_together({}).empty());
}

// Gradients and parameters take part in autograd; their copies must not.
TEST(HostStaging, RecordsNothingForAutograd) {
  HostStaging staging(torch::kCPU);
  const auto host = torch::zeros({3});
  staging.to_host(torch::ones({3}, torch::requires_grad()), host);
  EXPECT_FALSE(host.requires_grad());
}

}  // namespace
}  // namespace bimetal::device
