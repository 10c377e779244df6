#pragma once
// The closing words of a run.

#include "bimetal/cli/terminal.h"
#include "bimetal/progress/report.h"

namespace bimetal::cli {

/// Figures of the whole job, and a table of the workers where there are several.
void print_summary(Terminal& terminal, const progress::Report& report);

}  // namespace bimetal::cli
