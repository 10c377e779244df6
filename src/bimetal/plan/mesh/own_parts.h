#pragma once
// Pipelines of neighbours whose number of parts of tensors differs by stage: for example one device
// with a whole stage before two that share the tensors of the next.

#include <cstddef>
#include <optional>
#include <span>

#include "bimetal/plan/mesh/stages_choice.h"
#include "bimetal/plan/model_facts.h"

namespace bimetal::plan {

/// With the wish's numbers of parts for each stage, and of replicas. Nothing if that cannot be.
std::optional<MeshChoice> in_parts_as_wished(const MeshProblem& on, const StagesWish& wish);

/// The best of stages of one replica each, some of which are neighbours of one host with parts, if
/// the wish leaves the number of parts open, and of up to kDividedFreely devices. Nothing if none
/// can be.
std::optional<MeshChoice> in_own_parts(const MeshProblem& on, const StagesWish& wish);

// The facts of one tensor rank's part of a model, from those of the whole.

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
