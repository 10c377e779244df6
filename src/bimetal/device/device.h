#pragma once
// The devices of this machine, found through libtorch's device-generic interface.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/job/worker_spec.h"

namespace bimetal::device {

struct DeviceInfo {
  torch::Device device{torch::kCPU};
  std::string name;                     ///< "AMD EPYC 7B13", "NVIDIA H100", "Apple M3"
  std::uint64_t memory_bytes = 0;       ///< all of it; 0 where it can't be had
  std::uint64_t memory_free_bytes = 0;  ///< available now
  int cores = 0;                        ///< CPU: usable cores (affinity and cgroup quota counted)
};

/// CPU first, then every accelerator that libtorch was built for and can see.
std::vector<DeviceInfo> enumerate_devices();

/// The device that a worker runs on. A type without an index takes the accelerator of the worker's
/// local rank, counted round where there are fewer accelerators than workers; "auto" does so while
/// there are accelerators enough and is the CPU for the ranks beyond. Error(Unsupported), listing
/// those that exist, if the device does not; it also names what libtorch was built without.
torch::Device select_device(const job::WorkerSpec& spec, int local_rank);

/// Prepares this process for one of `local_world_size` workers of this machine: CPU threads
/// (threads=, else an equal part of the usable cores), and memory= (limit_process_memory in
/// device/host.h) or, without such a limit, that memory of freed tensors is used again
/// (device/host_allocator.h). Call once, before any tensor work. Errors: InvalidArgument for more
/// than 16 threads for each usable core; Unsupported for memory= where it can't be limited.
void apply_worker_limits(const job::WorkerSpec& spec, int local_world_size);

/// Blocks until everything queued on `device` has run (no-op on the CPU).
void synchronize(const torch::Device& device);

/// Emulates speed < 1 by sleeping: call with the seconds that real compute took. Sleeps
/// compute_seconds × (1/speed − 1); a sleep's excess is taken off this thread's next one.
void pause_for_speed(double speed, double compute_seconds);

// The marketing name of an accelerator. libtorch's device-generic interface has no call for it.

/// "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "Apple M3"; where the name can't be had, the
/// device's own notation, e.g. "xpu:0".
std::string accelerator_name(const torch::Device& device);

/// The major number of an NVIDIA card's compute capability: 8 is Ampere. 0 for other devices, AMD's
/// among them, and if it can't be had.
int cuda_capability(const torch::Device& device);

// A process's device, and the type that it computes in.

struct Place {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
};

/// "float32" or "float64", as jobs and checkpoints name them.
inline torch::Dtype dtype_named(std::string_view name) {
  return name == "float64" ? torch::kFloat64 : torch::kFloat32;
}

}  // namespace bimetal::device
