#pragma once
// libtorch's autocast from C++: within a scope, operations that gain by it compute in a type of
// half the size (matrix products, convolutions), and those that lose too much stay in float32.

#include <c10/core/DeviceType.h>

#include "bimetal/precision/precision.h"

namespace bimetal::precision {

/// The calling thread's autocast for devices of one type, for the time of a forward pass; what was
/// set before is set again afterwards. Backward needs none: each operation's backward computes in
/// the type of its forward. float32 changes nothing. Scopes may be nested.
class Autocast {
 public:
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
