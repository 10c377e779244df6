#pragma once
// A measured plan as tables and as JSON.

#include <nlohmann/json.hpp>

#include "bimetal/cli/terminal.h"
#include "bimetal/train/measure/measure_plan.h"

namespace bimetal::cli {

/// The workers, their link, a prediction for each way to run the job, and the advice.
void print_plan(Terminal& terminal, const train::MeasuredPlan& plan);

/// The same figures; docs/planning.md describes each field.
nlohmann::json plan_json(const train::MeasuredPlan& plan);

}  // namespace bimetal::cli
