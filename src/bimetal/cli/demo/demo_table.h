#pragma once
// The table that the demo ends with.

#include <string>
#include <vector>

#include "bimetal/cli/demo/run_figures.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

struct DemoFigures {
  std::vector<std::string> workers;
  std::vector<RunFigures> alone;  ///< one for each worker
  RunFigures equal, balanced;
};

/// Images per second of each way to run, times the fastest worker alone, efficiency (of the sum of
/// what the workers did alone in this demo), and the accuracy of the real training.
void print_demo_table(Terminal& terminal, const DemoFigures& figures);

}  // namespace bimetal::cli
