#pragma once
// What becomes of a model's units where their tensors are in parts on several ranks
// (docs/tensor.md), measured by one rank alone, and of a backward pass in two parts.

#include <cstdint>
#include <vector>

#include "bimetal/plan/model_facts.h"
#include "bimetal/task/task.h"
#include "bimetal/train/measure/dry_run.h"
#include "bimetal/train/measure/unit_measure.h"

namespace bimetal::train {

// What becomes of a model's units where their tensors are in parts on several ranks
// (docs/tensor.md), measured by one rank alone.

/// Into `facts`: how the units of a model may be cut.
void count_splits(const task::Model& model, const Owners& owners, plan::ModelFacts& facts);

/// Makes the dry run once more as the first of two ranks with equal parts, whose sums are its own
/// alone, and completes `facts`, which say how units may be cut: what of their figures does not
/// become less, and what is summed. `whole`: of a run with so many samples, unit by unit. Errors:
/// whatever the model and the task throw.
void measure_parts(const task::Task& task, const UnitMeasureOptions& options, std::int64_t samples,
                   const std::vector<UnitRun>& whole, plan::ModelFacts& facts);

// What a backward pass in two parts, as of a zero-bubble pipeline, costs beside one in one.

/// In terms of an ordinary backward's seconds: at least 1 together, since each part begins anew.
struct SplitSeconds {
  double inputs = 0.5, weights = 0.5;
};

/// Of all units behind the first, by passes of so many samples, both kinds in turn for a second,
/// once each at least. The model's gradients are dropped as they come. Errors: what the task
/// throws.
SplitSeconds measure_split(const task::Task& task, const DryRun& dry,
                           const UnitMeasureOptions& options, std::int64_t samples);

}  // namespace bimetal::train
