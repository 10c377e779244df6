#pragma once
// The table that the demo ends with.

#include <string>
#include <vector>

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

/// The figures of a run that has ended, from its report.
struct RunFigures {
  double samples_per_s = 0;
  double test_accuracy = 0;  ///< 0…1; NaN where it was not evaluated
  int fastest_rank = -1;     ///< of several workers: the fastest alone, by the run's own figures
  std::string fastest_time = {};  ///< where its time went, in words
};

struct DemoFigures {
  std::vector<std::string> workers;
  std::vector<RunFigures> alone;  ///< one for each worker
  RunFigures equal, balanced;
};

/// Images per second of each way to run, times the fastest worker alone, efficiency (relative to
/// the sum of the workers' rates alone in this demo), and the accuracy of the real training.
void print_demo_table(Terminal& terminal, const DemoFigures& figures);

}  // namespace bimetal::cli
