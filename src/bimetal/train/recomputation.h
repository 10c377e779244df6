#pragma once
// train.recompute: which activations are dropped after forward and computed again for backward.

#include <cstddef>
#include <string>

namespace bimetal::train {

/// Units that are computed again together, as task::Segments takes it, in a model of `units`; 0:
/// none are. `configured`, as in the job file: "none"; "all": each unit by itself; "sqrt": √units
/// together, after Chen et al. 2016, §4.1; a number: so many together; "auto": none, until there is
/// no memory for that. Error(InvalidArgument) for anything else.
std::size_t recomputed_at_once(const std::string& configured, std::size_t units);

}  // namespace bimetal::train
