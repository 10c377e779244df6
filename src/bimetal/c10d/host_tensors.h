#pragma once
// Torch's types and reductions as the fabric knows them.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>
#include <vector>

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

// The tensors of one collective as memory that the fabric can read and write.

/// What the operation does with a tensor.
enum class Use {
  read,     ///< its values go out; it stays as it is
  write,    ///< it takes the result, its old values don't matter
  update,   ///< both
  scratch,  ///< its values go out, and the operation overwrites them: a copy is lent
};

/// Lends contiguous CPU tensors as they are, and a copy in host memory of all others: of strided
/// views, and of what lies on a device (copied when that device has done all that it was given).
/// Must live until the operation is done. Copies are the same loan. Not thread-safe. Errors:
/// Unsupported for sparse tensors.
class HostTensors {
 public:
  /// A contiguous CPU tensor of the same shape and type.
  at::Tensor lend(const at::Tensor& tensor, Use use);

  /// One tensor of one dimension that holds the elements of all `parts` one after the other.
  /// They must be of one type.
  at::Tensor join(const std::vector<at::Tensor>& parts);

  /// Room for the elements of all `parts`, which get their own from it.
  at::Tensor divide(const std::vector<at::Tensor>& parts);

  /// After the operation: copies results to where the caller wants them. Blocks until they are on
  /// their devices.
  void hand_back();

  /// Counts a tensor that is only written to among the inputs, as other back ends' profiles do with
  /// what a call has no other tensor than.
  void show(const at::Tensor& tensor) { inputs_.push_back(tensor); }

  /// For profiles: those whose values go out, as the caller has them, and those shown.
  const std::vector<at::Tensor>& inputs() const noexcept { return inputs_; }

 private:
  std::vector<at::Tensor> inputs_;
  std::vector<at::Tensor> held_;
  std::vector<std::pair<at::Tensor, at::Tensor>> results_;  ///< from, to
};

/// The memory of a contiguous CPU tensor. Types that the fabric has no name for are carried as
/// what they are made of: complex numbers as two reals, all others (bool, float8…) as bytes, so
/// that the count may be a multiple of numel().
comm::Buffer buffer_of(const at::Tensor& host);

}  // namespace bimetal::c10d
