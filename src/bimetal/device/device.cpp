#include "bimetal/device/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <tuple>

#include "bimetal/base/error.h"
#include "bimetal/device/host.h"
#include "bimetal/device/host_allocator.h"

#if __has_include(<dlfcn.h>)
#include <dlfcn.h>
#endif

namespace bimetal::device {
namespace {

// The one kind of accelerator that this libtorch has, if any device of it is there. libtorch never
// holds two kinds: cuda stands for NVIDIA or AMD by how it was built.
std::optional<torch::DeviceType> accelerator_type() {
  if (at::accelerator::deviceCount() == 0) return std::nullopt;
  return at::accelerator::getAccelerator();
}

/// More of them only wait for each other; far more, and the system or libtorch's pool refuses.
constexpr int kMostThreadsPerCore = 16;

void require_cores_for(const job::WorkerSpec& spec) {
  const int cores = usable_cores();
  if (spec.threads.value_or(1) <= kMostThreadsPerCore * cores) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("worker \"{}\": this machine has {} usable core{}, and a worker's threads "
                  "may be {} for each: threads={} at most, and {} is usually fastest",
                  job::to_string(spec), cores, cores == 1 ? "" : "s", kMostThreadsPerCore,
                  kMostThreadsPerCore * cores, cores));
}

torch::Device accelerator(torch::DeviceType type, int index) {
  return torch::Device(type, static_cast<c10::DeviceIndex>(index));
}

DeviceInfo describe_cpu() {
  const HostMemory memory = host_memory();
  return {torch::kCPU, cpu_name(), memory.total_bytes, memory.free_bytes, usable_cores()};
}

DeviceInfo describe_accelerator(const torch::Device& device) {
  DeviceInfo info{device, accelerator_name(device)};
  try {
    std::tie(info.memory_free_bytes, info.memory_bytes) =
        at::accelerator::getMemoryInfo(device.index());
  } catch (const c10::Error&) {
    // Not every backend tells. Apple's shares the machine's memory, and should have a part of it.
    if (!device.is_mps()) return info;
    const HostMemory memory = host_memory();
    const auto& metal = at::detail::getMPSHooks();
    const std::uint64_t part = metal.getRecommendedMaxMemory();
    const std::uint64_t taken = metal.getDriverAllocatedMemory();
    info.memory_bytes = std::min<std::uint64_t>(memory.total_bytes, part);
    info.memory_free_bytes =
        std::min<std::uint64_t>(memory.free_bytes, part - std::min(part, taken));
  }
  return info;
}

[[noreturn]] void no_such_device(const job::WorkerSpec& spec) {
  std::vector<std::string> present = {"cpu"};
  for (int i = 0; i < at::accelerator::deviceCount(); ++i) {
    present.push_back(accelerator(*accelerator_type(), i).str());
  }
  const auto built_for = at::accelerator::getAccelerator();
  const bool built = built_for && c10::DeviceTypeName(*built_for, true) == spec.type;
  throw Error(
      ErrorCode::Unsupported,
      fmt::format("worker \"{}\": this machine has no such device that libtorch can use; "
                  "there {}: {}{}",
                  job::to_string(spec), present.size() == 1 ? "is" : "are",
                  fmt::join(present, ", "),
                  built ? "" : fmt::format(" (this libtorch is built without {})", spec.type)));
}

}  // namespace

std::vector<DeviceInfo> enumerate_devices() {
  std::vector<DeviceInfo> devices = {describe_cpu()};
  for (int i = 0; i < at::accelerator::deviceCount(); ++i) {
    devices.push_back(describe_accelerator(accelerator(*accelerator_type(), i)));
  }
  return devices;
}

torch::Device select_device(const job::WorkerSpec& spec, int local_rank) {
  const int count = at::accelerator::deviceCount();
  const auto type = accelerator_type();
  if (spec.type == "cpu") return torch::kCPU;
  if (spec.type == "auto") {
    return type && local_rank < count ? accelerator(*type, local_rank) : torch::Device(torch::kCPU);
  }
  if (!type || c10::DeviceTypeName(*type, true) != spec.type) no_such_device(spec);
  if (spec.index.value_or(0) >= count) no_such_device(spec);
  return accelerator(*type, spec.index.value_or(local_rank % count));
}

void apply_worker_limits(const job::WorkerSpec& spec, int local_world_size) {
  require_cores_for(spec);
  const int equal_part = std::max(1, usable_cores() / std::max(1, local_world_size));
  at::set_num_threads(spec.threads.value_or(equal_part));
  if (!spec.memory_bytes) return reuse_freed_tensors();
  return_large_blocks();  // kept memory would count against the limit
  if (spec.type != "cpu") {
    throw Error(ErrorCode::Unsupported,
                fmt::format("worker \"{}\": memory= limits what a worker of type cpu may allocate; "
                            "an accelerator's own memory can't be limited: leave memory= out",
                            job::to_string(spec)));
  }
  limit_process_memory(*spec.memory_bytes);
}

void synchronize(const torch::Device& device) {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

void pause_for_speed(double speed, double compute_seconds) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  if (!(speed > 0 && speed <= 1)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("speed {} is not above 0 and at most 1", speed));
  }
  if (speed == 1) return;
  thread_local Seconds overslept{0};
  const Seconds pause = Seconds(compute_seconds * (1 / speed - 1)) - overslept;
  const auto start = Clock::now();
  if (pause > Seconds::zero()) std::this_thread::sleep_for(pause);
  const Seconds slept = Clock::now() - start;
  overslept = std::max(slept - pause, Seconds::zero());
}

namespace {

#if __has_include(<dlfcn.h>)

// A C function of a library that libtorch has already loaded, or that the driver installs.
template <typename Function>
Function* function_of(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_LAZY);
  return handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
}

// The driver interfaces of CUDA and HIP are plain C and have kept these three functions' signatures
// since their first release, so no header of theirs is needed: init(flags), get(&handle, ordinal),
// name(text, size, handle); 0 is success. Both obey the variables that hide devices.
std::string driver_name(const char* library, const char* init, const char* get, const char* name,
                        int ordinal) {
  auto* initialise = function_of<int(unsigned)>(library, init);
  auto* get_device = function_of<int(int*, int)>(library, get);
  auto* get_name = function_of<int(char*, int, int)>(library, name);
  int handle = 0;
  std::array<char, 256> text{};
  if (!initialise || !get_device || !get_name || initialise(0) != 0 ||
      get_device(&handle, ordinal) != 0 || get_name(text.data(), text.size() - 1, handle) != 0)
    return "";
  return text.data();
}

int cuda_major(int ordinal) {
  constexpr int kMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
  auto* initialise = function_of<int(unsigned)>("libcuda.so.1", "cuInit");
  auto* get_device = function_of<int(int*, int)>("libcuda.so.1", "cuDeviceGet");
  auto* attribute = function_of<int(int*, int, int)>("libcuda.so.1", "cuDeviceGetAttribute");
  int handle = 0, major = 0;
  if (!initialise || !get_device || !attribute || initialise(0) != 0 ||
      get_device(&handle, ordinal) != 0 || attribute(&major, kMajor, handle) != 0)
    return 0;
  return major;
}

std::string cuda_name(int ordinal) {
  if (at::globalContext().hasROCM()) {
    return driver_name("libamdhip64.so", "hipInit", "hipDeviceGet", "hipDeviceGetName", ordinal);
  }
  return driver_name("libcuda.so.1", "cuInit", "cuDeviceGet", "cuDeviceGetName", ordinal);
}

#else

int cuda_major(int /*ordinal*/) {
  return 0;
}

std::string cuda_name(int /*ordinal*/) {
  return "";
}

#endif

}  // namespace

std::string accelerator_name(const torch::Device& device) {
  std::string name;
  if (device.is_cuda()) name = cuda_name(device.index());
  if (device.is_mps()) name = cpu_name();  // one chip, named as a whole
  return name.empty() ? device.str() : name;
}

int cuda_capability(const torch::Device& device) {
  if (!device.is_cuda() || at::globalContext().hasROCM()) return 0;
  return cuda_major(device.has_index() ? device.index() : 0);
}

}  // namespace bimetal::device
