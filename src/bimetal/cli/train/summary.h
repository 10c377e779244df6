#pragma once
// The closing words of a run.

#include <string>
#include <vector>

#include "bimetal/cli/terminal.h"
#include "bimetal/progress/report.h"

namespace bimetal::cli {

/// Figures of the whole job, and a table of the workers where there are several. `specs`: of each
/// what it was asked to be, which tells like devices apart; of another number, nothing is known.
void print_summary(Terminal& terminal, const progress::Report& report,
                   const std::vector<std::string>& specs);

}  // namespace bimetal::cli
