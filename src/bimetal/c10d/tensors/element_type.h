#pragma once
// Torch's types and reductions as the fabric knows them.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bimetal/comm/dtype.h"

namespace bimetal::c10d {

/// How values of one type of torch's travel.
struct ElementType {
  comm::DType dtype;
  std::size_t per_value;  ///< elements of `dtype` for one value
};
ElementType element_type(at::ScalarType type);

/// A reduction over tensors of one type.
struct Reduction {
  comm::ReduceOp op;
  at::Tensor factor;  ///< multiplied into the values beforehand; undefined: none

  /// Does that multiplication, in place.
  void prepare(at::Tensor host) const;
};

/// SUM, AVG (floating point and complex), MIN, MAX, PRODUCT, PREMUL_SUM (a sum); complex numbers
/// are only summed and averaged. For bool SUM, MAX and BOR mean "any", PRODUCT, MIN and BAND "all".
/// Error(Unsupported) that names operation and type for everything else.
Reduction reduction_for(const ::c10d::ReduceOp& op, at::ScalarType type);

}  // namespace bimetal::c10d
