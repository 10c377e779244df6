#pragma once
// Planned memory as a table and as JSON.

#include <nlohmann/json.hpp>

#include "bimetal/cli/terminal.h"
#include "bimetal/plan/memory/memory_plan.h"

namespace bimetal::cli {

/// Advice; before it, with `details`, what each rank needs as the job file has it, by kind, and
/// every way to keep the job, whether it fits and what it adds to a step.
void print_memory(Terminal& terminal, const plan::MemoryInput& input, const plan::MemoryPlan& plan,
                  bool details);

/// The same figures; docs/planning.md describes each field.
nlohmann::json memory_json(const plan::MemoryInput& input, const plan::MemoryPlan& plan);

}  // namespace bimetal::cli
