#include "bimetal/device/probe.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/device/device.h"
#include "bimetal/device/staging.h"

namespace bimetal::device {
namespace {

constexpr int kMeasurements = 7;  // fields of DeviceSpeed, which share the budget
constexpr std::int64_t kFloatBytes = 4;
constexpr std::int64_t kCopiedBytes = 16 << 20;  // of gradients and activations
constexpr double kShortestSample = 0.005;  // seconds: below it, the clock and queueing blur a run
constexpr std::size_t kFewestSamples = 3;

// An accelerator needs large operands to be filled; a CPU would take seconds for them.
struct Sizes {
  std::int64_t matmul;             // side of the square matrices
  std::int64_t convolution_batch;  // images
  std::int64_t copy_bytes;
};
constexpr Sizes kCpuSizes = {512, 8, 128 << 20};
constexpr Sizes kAcceleratorSizes = {4096, 256, 256 << 20};

// A layer of a small image network.
constexpr std::int64_t kChannels = 64, kKernel = 3, kSide = 28;

class Prober {
 public:
  Prober(const torch::Device& device, double budget_seconds)
      : device_(device),
        sizes_(device.is_cpu() ? kCpuSizes : kAcceleratorSizes),
        seconds_each_(budget_seconds / kMeasurements) {}

  std::optional<double> matmul_gflops(torch::Dtype dtype) const {
    const std::int64_t n = sizes_.matmul;
    return gigas(2.0 * n * n * n, [&]() -> std::function<void()> {
      const auto a = randn({n, n}, dtype), b = randn({n, n}, dtype);
      return [a, b, out = torch::empty_like(a)]() mutable { torch::mm_out(out, a, b); };
    });
  }

  std::optional<double> convolution_gflops(torch::Dtype dtype) const {
    const std::int64_t batch = sizes_.convolution_batch;
    const double flop = 2.0 * batch * kChannels * kChannels * kKernel * kKernel * kSide * kSide;
    return gigas(flop, [&]() -> std::function<void()> {
      const auto x = randn({batch, kChannels, kSide, kSide}, dtype);
      const auto weight = randn({kChannels, kChannels, kKernel, kKernel}, dtype);
      return [x, weight] { torch::conv2d(x, weight, {}, 1, kKernel / 2); };
    });
  }

  std::optional<double> memory_bytes_per_s() const {
    const auto read_and_written = 2.0 * sizes_.copy_bytes;
    return rate(read_and_written, [&]() -> std::function<void()> {
      const auto source = device_floats(sizes_.copy_bytes);
      return [source, target = torch::empty_like(source)] { target.copy_(source); };
    });
  }

  std::optional<double> copy_bytes_per_s(bool to_device) const {
    return copies_per_s(to_device, sizes_.copy_bytes);
  }

  /// Bytes a second, by copies of so many.
  std::optional<double> copies_per_s(bool to_device, std::int64_t bytes) const {
    if (device_.is_cpu()) return std::nullopt;
    return rate(static_cast<double>(bytes), [&]() -> std::function<void()> {
      const auto on_device = device_floats(bytes);
      const auto on_host = host_buffer(on_device.numel(), torch::kFloat32, device_);
      return [to_device, on_device, on_host] {
        constexpr bool kNonBlocking = true;
        if (to_device)
          on_device.copy_(on_host, kNonBlocking);
        else
          on_host.copy_(on_device, kNonBlocking);
      };
    });
  }

 private:
  using Preparation = std::function<std::function<void()>()>;  // makes operands, returns the run

  torch::Tensor randn(torch::IntArrayRef shape, torch::Dtype dtype) const {
    return torch::randn(shape, device_).to(dtype);
  }

  torch::Tensor device_floats(std::int64_t bytes) const {
    return torch::zeros({bytes / kFloatBytes}, device_);
  }

  std::optional<double> gigas(double work, const Preparation& prepare) const {
    const auto per_second = rate(work, prepare);
    return per_second ? std::optional(*per_second * 1e-9) : std::nullopt;
  }

  // Work per second, or nothing where libtorch refuses the operation or its memory.
  std::optional<double> rate(double work, const Preparation& prepare) const {
    try {
      return work / median_seconds(prepare());
    } catch (const c10::Error&) {
      return std::nullopt;
    } catch (const std::bad_alloc&) {
      return std::nullopt;
    }
  }

  double sample(const std::function<void()>& run, int repeats) const {
    const Stopwatch watch;
    for (int i = 0; i < repeats; ++i) run();
    synchronize(device_);
    return watch.seconds() / repeats;
  }

  double median_seconds(const std::function<void()>& run) const {
    const Stopwatch watch;
    sample(run, 1);  // kernels are chosen and memory is fetched
    const double once = sample(run, 1);
    const int repeats =
        std::clamp(static_cast<int>(kShortestSample / std::max(once, 1e-6)), 1, 1000);
    std::vector<double> samples;
    while (samples.size() < kFewestSamples || watch.seconds() < seconds_each_) {
      samples.push_back(sample(run, repeats));
    }
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    return *middle;
  }

  torch::Device device_;
  Sizes sizes_;
  double seconds_each_;
};

}  // namespace

DeviceSpeed probe_device(const torch::Device& device, std::chrono::milliseconds budget) {
  const torch::NoGradGuard no_grad;
  const Prober prober(device, std::chrono::duration<double>(budget).count());
  DeviceSpeed speed;
  speed.half = device.is_cpu() ? torch::kBFloat16 : torch::kFloat16;
  speed.matmul_float32_gflops = prober.matmul_gflops(torch::kFloat32);
  speed.matmul_half_gflops = prober.matmul_gflops(speed.half);
  speed.convolution_float32_gflops = prober.convolution_gflops(torch::kFloat32);
  speed.convolution_half_gflops = prober.convolution_gflops(speed.half);
  speed.memory_bytes_per_s = prober.memory_bytes_per_s();
  speed.to_device_bytes_per_s = prober.copy_bytes_per_s(true);
  speed.from_device_bytes_per_s = prober.copy_bytes_per_s(false);
  return speed;
}

std::optional<CopySpeed> probe_copies(const torch::Device& device) {
  const torch::NoGradGuard no_grad;
  const Prober prober(device, 0.5);
  const auto in = prober.copies_per_s(true, kCopiedBytes);
  const auto out = prober.copies_per_s(false, kCopiedBytes);
  const auto small = prober.copies_per_s(false, kFloatBytes);
  if (!in || !out || !small) return std::nullopt;
  return CopySpeed{.latency_s = static_cast<double>(kFloatBytes) / *small,
                   .to_device_bytes_per_s = *in,
                   .from_device_bytes_per_s = *out};
}

double product_speed(const torch::Device& device) {
  const auto speed = probe_device(device, std::chrono::milliseconds(300));
  return speed.matmul_float32_gflops.value_or(0);
}

}  // namespace bimetal::device
