#pragma once
// The facts of one tensor rank's part of a model, from those of the whole.

#include <cstddef>
#include <span>

#include "bimetal/plan/model_facts.h"

namespace bimetal::plan {

/// How many ranks the model's units have whole pieces for; 1 where no unit may be cut.
int most_tensor_ranks(const ModelFacts& facts);
/// Of facts of one model on several kinds of devices.
int most_tensor_ranks(std::span<const ModelFacts> kinds);

/// What rank `part` of those with these weights has and computes by itself, its pieces being dealt
/// out as the run does it (balance::whole_parts): a unit's time is that of its matrices, in
/// proportion, beside what every rank computes. Nothing of the sums. Errors: InvalidArgument for
/// more weights than most_tensor_ranks().
ModelFacts facts_in_parts(const ModelFacts& whole, std::span<const double> weights,
                          std::size_t part);

}  // namespace bimetal::plan
