#pragma once
// Where each trained parameter is used. The plan of flat tensors is made from this.

#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

/// Index into a list of trained parameters.
using Places = std::unordered_map<const c10::TensorImpl*, std::size_t>;

Places places_of(const std::vector<task::NamedTensor>& trained);

/// What of parameters is whole, and when (level 3).
struct WholeForm {
  /// Type of float32 parameters that one unit alone uses, and only for products (task/unit.h),
  /// while they are gathered: autocast would make copies of them in that type. Nothing: their own.
  std::optional<torch::ScalarType> half = {};
  /// Parameters of fewer elements that one unit alone uses stay whole; 0: none do.
  std::int64_t keep_below = 0;
};

/// Of each of `trained`: its type and size, the first unit of `model` that uses it, whether
/// others do, too, and its form.
std::vector<ParameterPlace> describe(const task::Model& model,
                                     const std::vector<task::NamedTensor>& trained,
                                     const WholeForm& form = {});

}  // namespace bimetal::parallel::shard
