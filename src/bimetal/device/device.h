#pragma once
// The devices of this machine, found through libtorch's device-generic interface.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/device/worker_spec.h"

namespace bimetal::device {

struct DeviceInfo {
  torch::Device device{torch::kCPU};
  std::string name;                    ///< "AMD EPYC 7B13", "NVIDIA H100", "Apple M3"
  std::uint64_t memory_bytes = 0;      ///< all of it
  std::uint64_t memory_free_bytes = 0; ///< what can be had now
  int cores = 0;                       ///< CPU: usable cores (affinity and cgroup quota counted)
};

/// CPU first, then every accelerator libtorch was built for and can see.
std::vector<DeviceInfo> enumerate_devices();

/// Resolves "auto" and checks that the device exists; Error(Unsupported) lists those that do.
/// Local rank r takes accelerator r when there are several.
torch::Device select_device(const WorkerSpec& spec, int local_rank);

/// Applies threads=, memory= of the spec to this process. Call once, before any tensor work.
void apply_worker_limits(const WorkerSpec& spec, int local_world_size);

/// Blocks until everything queued on `device` has run (no-op on the CPU).
void synchronize(const torch::Device& device);

/// Emulates speed < 1 by sleeping: call with the seconds that real compute took.
void pause_for_speed(double speed, double compute_seconds);

}  // namespace bimetal::device
