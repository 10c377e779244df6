#include "bimetal/device/probe.h"

#include <gtest/gtest.h>

#include <chrono>

#include "bimetal/device/device.h"

namespace bimetal::device {
namespace {

TEST(Probe, EveryDeviceHasSaneFigures) {
  for (const DeviceInfo& info : enumerate_devices()) {
    const DeviceSpeed speed = probe_device(info.device, std::chrono::milliseconds(200));
    SCOPED_TRACE(info.device.str());
    // The bounds are those of physics, not of any machine: from a thousandth of a slow core to more
    // than a rack holds.
    EXPECT_GT(speed.matmul_float32_gflops.value(), 1e-3);
    EXPECT_LT(speed.matmul_float32_gflops.value(), 1e7);
    EXPECT_GT(speed.convolution_float32_gflops.value(), 1e-3);
    EXPECT_LT(speed.convolution_float32_gflops.value(), 1e7);
    EXPECT_GT(speed.memory_bytes_per_s.value(), 1e6);
    EXPECT_LT(speed.memory_bytes_per_s.value(), 1e14);
    EXPECT_EQ(speed.to_device_bytes_per_s.has_value(), !info.device.is_cpu());
    EXPECT_EQ(speed.from_device_bytes_per_s.has_value(), !info.device.is_cpu());
  }
}

TEST(Probe, HalfIsTheTypeThatTheDeviceTrainsIn) {
  EXPECT_EQ(probe_device(torch::kCPU, std::chrono::milliseconds(1)).half, torch::kBFloat16);
}

}  // namespace
}  // namespace bimetal::device
