#pragma once
// A measured plan as tables and as JSON.

#include <nlohmann/json.hpp>

#include "bimetal/cli/terminal.h"
#include "bimetal/train/measure/measure_plan.h"

namespace bimetal::cli {

/// The verdict in two lines, and what fits how; with `details` also the workers, their link, and a
/// prediction for each way to run the job.
void print_plan(Terminal& terminal, const train::MeasuredPlan& plan, bool details);

/// The same figures; docs/planning.md describes each field.
nlohmann::json plan_json(const train::MeasuredPlan& plan);

}  // namespace bimetal::cli
