#include "bimetal/precision/precision.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <mutex>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"

namespace bimetal::precision {
namespace {

void try_out(Precision precision, const torch::Device& device) {
  const auto options = torch::dtype(torch::kFloat32).device(device);
  const auto weight = torch::ones({8, 8}, options).requires_grad_();
  torch::Tensor out;
  {
    const CastCache cache;
    const Autocast cast(device.type(), precision);
    out = at::linear(torch::ones({8, 8}, options), weight);
  }
  if (out.scalar_type() != dtype_of(precision)) {
    throw Error(ErrorCode::Unsupported, "libtorch computes it in another type");
  }
  out.sum().backward();
  weight.grad().cpu();  // what went wrong on the device comes to light
}

/// On devices without TF32 libtorch takes the switch as well, and goes on as before.
void require_tf32(const torch::Device& device) {
  constexpr int kAmpere = 8;
  if (device.is_cuda() && device::cuda_capability(device) >= kAmpere) return;
  throw Error(ErrorCode::Unsupported,
              "TF32 is what NVIDIA's cards have from compute capability 8 on: Ampere and later");
}

}  // namespace

Precision precision_named(std::string_view name) {
  for (const auto precision :
       {Precision::float32, Precision::tf32, Precision::bfloat16, Precision::float16}) {
    if (name_of(precision) == name) return precision;
  }
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("there is no precision '{}'; known: float32, tf32, bfloat16, float16", name));
}

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::bfloat16: return "bfloat16";
    case Precision::float16: return "float16";
    case Precision::tf32: return "tf32";
    case Precision::float32: break;
  }
  return "float32";
}

torch::Dtype dtype_of(Precision precision) {
  switch (precision) {
    case Precision::bfloat16: return torch::kBFloat16;
    case Precision::float16: return torch::kFloat16;
    case Precision::tf32:
    case Precision::float32: break;
  }
  return torch::kFloat32;
}

bool is_half(Precision precision) {
  return dtype_of(precision) != torch::kFloat32;
}

void require_precision(Precision precision, const torch::Device& device) {
  if (precision == Precision::float32) return;
  std::string cause;
  try {
    if (precision == Precision::tf32) {
      require_tf32(device);
    } else {
      try_out(precision, device);
    }
    return;
  } catch (const c10::Error& error) {
    cause = error.what_without_backtrace();
  } catch (const Error& error) {
    cause = error.what();
  }
  throw Error(ErrorCode::Unsupported,
              fmt::format("{} cannot compute in {} ({}): take another train.precision, or for this "
                          "worker alone --worker {}:precision=float32",
                          device.str(), name_of(precision), cause.substr(0, cause.find('\n')),
                          device.str()));
}

namespace cast = at::autocast;

Autocast::Autocast(c10::DeviceType device, Precision precision)
    : device_(device), changed_(is_half(precision)) {
  if (!changed_) return;
  enabled_before_ = cast::is_autocast_enabled(device);
  dtype_before_ = cast::get_autocast_dtype(device);
  cast::set_autocast_dtype(device, dtype_of(precision));
  cast::set_autocast_enabled(device, true);
}

Autocast::~Autocast() {
  if (!changed_) return;
  cast::set_autocast_enabled(device_, enabled_before_);
  cast::set_autocast_dtype(device_, dtype_before_);
}

namespace {

/// libtorch's switches belong to the process, as this does.
struct Tf32Switches {
  std::mutex mutex;
  int users = 0;
  bool products = false, convolutions = false;  ///< the former settings
};

Tf32Switches& tf32_switches() {
  static Tf32Switches switches;
  return switches;
}

}  // namespace

Products::Products(Precision precision) : tf32_(precision == Precision::tf32) {
  if (!tf32_) return;
  auto& switches = tf32_switches();
  const std::scoped_lock lock(switches.mutex);
  if (switches.users++ > 0) return;
  auto& context = at::globalContext();
  const auto is_on = [&](at::Float32Op operation) {
    return context.float32Precision(at::Float32Backend::CUDA, operation) ==
           at::Float32Precision::TF32;
  };
  switches.products = is_on(at::Float32Op::MATMUL);
  switches.convolutions = is_on(at::Float32Op::CONV);
  context.setAllowTF32CuBLAS(true);
  context.setAllowTF32CuDNN(true);
}

Products::~Products() {
  if (!tf32_) return;
  auto& switches = tf32_switches();
  const std::scoped_lock lock(switches.mutex);
  if (--switches.users > 0) return;
  at::globalContext().setAllowTF32CuBLAS(switches.products);
  at::globalContext().setAllowTF32CuDNN(switches.convolutions);
}

CastCache::~CastCache() {
  cast::clear_cache();
}

}  // namespace bimetal::precision
