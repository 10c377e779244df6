#pragma once
// How fast a device is, measured by short runs of the operations that training consists of.
// docs/planning.md describes each measurement.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <optional>

namespace bimetal::device {

/// Medians of repeated runs. Empty: the device cannot do it, or not enough memory was free.
struct DeviceSpeed {
  std::optional<double> matmul_float32_gflops;
  std::optional<double> matmul_half_gflops;
  std::optional<double> convolution_float32_gflops;
  std::optional<double> convolution_half_gflops;
  torch::Dtype half = torch::kBFloat16;           ///< what "half" was: float16 on accelerators
  std::optional<double> memory_bytes_per_s;       ///< read and written by a copy within the device
  std::optional<double> to_device_bytes_per_s;    ///< from the host; empty for the CPU
  std::optional<double> from_device_bytes_per_s;  ///< to the host; empty for the CPU
};

/// Measures for about `budget` in all; a device too slow for it takes a few runs of each operation
/// nevertheless. The CPU is measured with at::get_num_threads() threads.
DeviceSpeed probe_device(const torch::Device& device,
                         std::chrono::milliseconds budget = std::chrono::seconds(1));

/// Copies between a device and page-locked memory of its host.
struct CopySpeed {
  double latency_s = 0;  ///< of the smallest, one way
  double to_device_bytes_per_s = 0, from_device_bytes_per_s = 0;
};

/// Measures for about 0.2 s. Nothing of the CPU, which has no such copies, and where they cannot be
/// made.
std::optional<CopySpeed> probe_copies(const torch::Device& device);

/// The speed of float32 products, in GFLOP/s, measured for 0.3 s; 0 if it cannot be measured.
double product_speed(const torch::Device& device);

}  // namespace bimetal::device
