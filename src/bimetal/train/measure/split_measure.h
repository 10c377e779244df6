#pragma once
// What a backward pass in two parts, as of a zero-bubble pipeline, costs beside one in one.

#include <cstdint>

#include "bimetal/train/measure/dry_run.h"

namespace bimetal::train {

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
