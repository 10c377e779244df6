#pragma once
// Measures, on one rank alone, a model's units with their tensors in parts on several ranks
// (docs/tensor.md), and a backward pass in two parts.

#include <cstdint>
#include <vector>

#include "bimetal/plan/model_facts.h"
#include "bimetal/task/task.h"
#include "bimetal/train/measure/dry_run.h"
#include "bimetal/train/measure/unit_measure.h"

namespace bimetal::train {

// Measures, on one rank alone, a model's units with their tensors in parts on several ranks
// (docs/tensor.md).

/// Into `facts`: how the units of a model may be cut.
void count_splits(const task::Model& model, const Owners& owners, plan::ModelFacts& facts);

/// Makes the dry run once more as the first of two ranks with equal parts, whose sums are its own
/// alone, and completes `facts`, which say how units may be cut, with the part of their figures
/// that does not become less, and with their sums. `whole`: a run with so many samples, unit by
/// unit. Errors: exceptions of the model and the task.
void measure_parts(const task::Task& task, const UnitMeasureOptions& options, std::int64_t samples,
                   const std::vector<UnitRun>& whole, plan::ModelFacts& facts);

// The cost of a backward pass in two parts, as in a zero-bubble pipeline, beside one in one.

/// In terms of an ordinary backward's seconds: at least 1 together, since each part begins anew.
struct SplitSeconds {
  double inputs = 0.5, weights = 0.5;
};

/// Measures all units behind the first, by passes of so many samples, both kinds in turn for a
/// second, at least once each. The model's gradients are dropped as they come. Errors: the task's
/// exceptions.
SplitSeconds measure_split(const task::Task& task, const DryRun& dry,
                           const UnitMeasureOptions& options, std::int64_t samples);

}  // namespace bimetal::train
