#pragma once
// Which parameters of a model have gradients that are exchanged.

#include <vector>

#include "bimetal/task/unit.h"

namespace bimetal::parallel {

/// Those that require gradients, in their order. Error(Unsupported), naming the first, for types
/// that cannot be summed over the ranks, and for several devices.
std::vector<task::NamedTensor> trained_parameters(const std::vector<task::NamedTensor>& parameters);

}  // namespace bimetal::parallel
