#pragma once
// Where each trained parameter is used: what the plan of flat tensors is made from.

#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

/// Index into a list of trained parameters.
using Places = std::unordered_map<const c10::TensorImpl*, std::size_t>;

Places places_of(const std::vector<task::NamedTensor>& trained);

/// Of each of `trained`: its type and size, the first unit of `model` that uses it, and whether
/// others do, too.
std::vector<ParameterPlace> describe(const task::Model& model,
                                     const std::vector<task::NamedTensor>& trained);

}  // namespace bimetal::parallel::shard
