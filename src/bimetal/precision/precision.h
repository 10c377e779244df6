#pragma once
// In which type a device computes what loses little by it: docs/precision.md.

#include <c10/core/DeviceType.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string_view>

namespace bimetal::precision {

/// Parameters, gradients and the optimizer are float32 in all of them.
enum class Precision {
  /// Float32's range with eight bits of precision.
  /// Eleven bits, but nothing above 65504 or below 6e-8: needs a LossScaler.
  float32,
  bfloat16,
  float16,
};

/// As jobs, reports and checkpoints name them. Error(InvalidArgument) for other names.
Precision precision_named(std::string_view name);
std::string_view name_of(Precision precision);  ///< "bfloat16"

/// The type that matrices are multiplied in.
torch::Dtype dtype_of(Precision precision);

/// Error(Unsupported), with advice, unless `device` can: it is tried on two small matrices, forward
/// and backward. That a device emulates a type, slowly, is no error.
void require_precision(Precision precision, const torch::Device& device);

// libtorch's autocast from C++: within a scope, operations that gain by it compute in a type of
// half the size (matrix products, convolutions), and those that lose too much stay in float32.

/// The calling thread's autocast for devices of one type, for the time of a forward pass; what was
/// set before is set again afterwards. Backward needs none: each operation's backward computes in
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
