#pragma once
// The type in which a device does computations that lose little by it: docs/precision.md.

#include <c10/core/DeviceType.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string_view>

namespace bimetal::precision {

/// Parameters, gradients and the optimizer are float32 in all of them.
enum class Precision {
  float32,   ///< products, too
  bfloat16,  ///< float32's range with eight bits of precision
  float16,   ///< eleven bits, but nothing above 65504 or below 6e-8: needs a LossScaler
  tf32,      ///< float32 whose products take eleven bits of each factor: NVIDIA's tensor cores
};

/// As jobs, reports and checkpoints name them. Error(InvalidArgument) for other names.
Precision precision_named(std::string_view name);
std::string_view name_of(Precision precision);  ///< "bfloat16"

/// The type of the matrices that are multiplied: tf32 is a way to multiply float32.
torch::Dtype dtype_of(Precision precision);

/// Whether that type is half as large as float32, so that autocast makes copies in it.
bool is_half(Precision precision);

/// Error(Unsupported), with advice, unless `device` can: it is tried on two small matrices, forward
/// and backward. That a device emulates a type, slowly, is no error. tf32 has no type to be tried:
/// NVIDIA's cards have it from compute capability 8 on, and here nothing else has.
void require_precision(Precision precision, const torch::Device& device);

// libtorch's autocast from C++: within a scope, operations that gain by it compute in a type of
// half the size (matrix products, convolutions), and those that lose too much stay in float32.

/// The calling thread's autocast for devices of one type, for the time of a forward pass; the
/// former setting comes back afterwards. Backward needs none: each operation's backward computes in
/// the type of its forward. float32 changes nothing. Scopes may be nested.
class Autocast {
 public:
  /// On this thread, until it goes; float32: nothing changes.
  Autocast(c10::DeviceType device, Precision precision);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool changed_, enabled_before_ = false;
  at::ScalarType dtype_before_ = at::kFloat;
};

/// While any of precision tf32 lives, CUDA's matrix products and convolutions of this process are
/// in TF32, forward and backward, on all threads; with the last one libtorch's switches are as
/// before. Others do nothing. Convolutions are in TF32 by libtorch's own default. Safe from any
/// thread.
class Products {
 public:
  explicit Products(Precision precision);  ///< that of the worker
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

 private:
  bool tf32_;
};

/// Forwards within it share the copies that autocast makes of parameters; at its end they are
/// dropped. It must end before the parameters change: autocast would go on with the old values.
class CastCache {
 public:
  CastCache() = default;
  ~CastCache();
  CastCache(const CastCache&) = delete;
  CastCache& operator=(const CastCache&) = delete;
};

}  // namespace bimetal::precision
