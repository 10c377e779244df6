#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <new>
#include <stdexcept>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/device/host.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/device/probe.h"

namespace bimetal::device {
namespace {

using ::testing::HasSubstr;

bool has_accelerator() {
  return enumerate_devices().size() > 1;
}

TEST(Devices, TheCpuComesFirstAndIsDescribed) {
  const auto devices = enumerate_devices();
  ASSERT_FALSE(devices.empty());
  EXPECT_TRUE(devices[0].device.is_cpu());
  EXPECT_FALSE(devices[0].name.empty());
  EXPECT_GE(devices[0].cores, 1);
  EXPECT_GT(devices[0].memory_bytes, 0u);
  EXPECT_LE(devices[0].memory_free_bytes, devices[0].memory_bytes);
}

TEST(Devices, EveryListedDeviceCanBeSelectedAndComputes) {
  const auto devices = enumerate_devices();
  for (const DeviceInfo& info : devices) {
    job::WorkerSpec spec;
    spec.type = c10::DeviceTypeName(info.device.type(), true);
    if (!info.device.is_cpu()) spec.index = info.device.index();
    const torch::Device device = select_device(spec, 0);
    EXPECT_EQ(device, info.device);
    const auto sum = torch::ones({8}, device).sum();
    synchronize(device);
    EXPECT_EQ(sum.item<float>(), 8.0f);
  }
}

TEST(SelectDevice, AutoGivesEachLocalRankAnAcceleratorWhileTheyLast) {
  const auto devices = enumerate_devices();
  const int accelerators = static_cast<int>(devices.size()) - 1;
  for (int local_rank = 0; local_rank < accelerators; ++local_rank) {
    EXPECT_EQ(select_device({}, local_rank), devices[local_rank + 1].device);
  }
  EXPECT_TRUE(select_device({}, accelerators).is_cpu());
}

TEST(SelectDevice, AMissingDeviceIsUnsupportedAndThePresentOnesAreListed) {
  for (const char* text : {"cuda:100", "xpu:100", "mps:100"}) {
    try {
      select_device(job::parse_worker_spec(text), 0);
      FAIL() << text << " was found";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unsupported);
      EXPECT_THAT(error.what(), HasSubstr(text));
      EXPECT_THAT(error.what(), HasSubstr(has_accelerator() ? "there are: cpu," : "there is: cpu"));
    }
  }
}

TEST(WorkerLimits, ThreadsAreThoseOfTheSpecOrAnEqualPartOfTheCores) {
  apply_worker_limits(job::parse_worker_spec("cpu:threads=1"), 1);
  EXPECT_EQ(at::get_num_threads(), 1);
  apply_worker_limits(job::parse_worker_spec("cpu"), 1);
  EXPECT_EQ(at::get_num_threads(), usable_cores());
  apply_worker_limits(job::parse_worker_spec("cpu"), 1000);
  EXPECT_EQ(at::get_num_threads(), 1);
}

TEST(WorkerLimits, MemoryOfAnAcceleratorIsNotLimited) {
  EXPECT_THROW(apply_worker_limits(job::parse_worker_spec("cuda:0,memory=1GiB"), 1), Error);
}

TEST(PauseForSpeed, SleepsInProportionAndMakesUpForOversleeping) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 50; ++i) pause_for_speed(0.25, 0.001);
  const std::chrono::duration<double> slept = std::chrono::steady_clock::now() - start;
  // 50 pauses of 3 ms. Without making up, each would add the scheduler's delay. A loaded machine
  // may take longer for the last one, never less in total.
  EXPECT_GE(slept.count(), 0.149);
}

TEST(PauseForSpeed, FullSpeedDoesNotSleepAndNonsenseIsRefused) {
  const auto start = std::chrono::steady_clock::now();
  pause_for_speed(1.0, 3600);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
  EXPECT_THROW(pause_for_speed(0.0, 1), Error);
  EXPECT_THROW(pause_for_speed(1.5, 1), Error);
}

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

template <typename Function>
bool is_out_of_memory_thrown_by(Function&& function) {
  try {
    function();
  } catch (...) {
    return is_out_of_memory(std::current_exception());
  }
  ADD_FAILURE() << "nothing was thrown";
  return false;
}

TEST(OutOfMemory, RecognisesTheCpuAllocatorsRefusal) {
  const std::int64_t petabytes = std::int64_t{1} << 50;
  EXPECT_TRUE(is_out_of_memory_thrown_by([&] { torch::empty({petabytes}); }));
}

TEST(OutOfMemory, RecognisesWhatOtherAllocatorsThrow) {
  EXPECT_TRUE(is_out_of_memory_thrown_by([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(is_out_of_memory_thrown_by(
      [] { TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory."); }));
  EXPECT_TRUE(is_out_of_memory_thrown_by(
      [] { TORCH_CHECK(false, "MPS backend out of memory (MPS allocated: 9 GB)"); }));
  EXPECT_TRUE(is_out_of_memory_thrown_by(
      [] { throw std::runtime_error("could not create a memory object"); }));
  EXPECT_TRUE(
      is_out_of_memory_thrown_by([] { throw Error(ErrorCode::OutOfMemory, "as it says"); }));
}

TEST(OutOfMemory, LeavesOtherErrorsAlone) {
  EXPECT_FALSE(is_out_of_memory_thrown_by([] { torch::zeros({2}) + torch::zeros({3}); }));
  EXPECT_FALSE(is_out_of_memory_thrown_by([] { throw Error(ErrorCode::System, "disk is full"); }));
  EXPECT_FALSE(is_out_of_memory_thrown_by([] { throw 1; }));
}

}  // namespace
}  // namespace bimetal::device
