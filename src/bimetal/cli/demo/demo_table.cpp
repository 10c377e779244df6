#include "bimetal/cli/demo/demo_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace bimetal::cli {
namespace {

struct Scale {
  double fastest = 0, sum = 0;
};

Scale scale_of(const std::vector<RunFigures>& alone) {
  Scale scale;
  for (const auto& figures : alone) {
    scale.fastest = std::max(scale.fastest, figures.samples_per_s);
    scale.sum += figures.samples_per_s;
  }
  return scale;
}

std::string row(const std::string& what, const std::string& rate, const std::string& times,
                const std::string& efficiency, const std::string& accuracy) {
  return fmt::format("{:<34} {:>9} {:>15} {:>11} {:>14}", what, rate, times, efficiency, accuracy);
}

std::string row_of(const std::string& what, const RunFigures& run, Scale scale, bool together) {
  return row(what, fmt::format("{:.0f}", run.samples_per_s),
             fmt::format("{:.2f} ×", run.samples_per_s / scale.fastest),
             together ? fmt::format("{:.0f} %", 100 * run.samples_per_s / scale.sum) : "",
             std::isnan(run.test_accuracy) ? "" : fmt::format("{:.2f} %", 100 * run.test_accuracy));
}

void print_if_slower(Terminal& terminal, const DemoFigures& figures, Scale scale) {
  const double relative = figures.balanced.samples_per_s / scale.fastest;
  if (figures.workers.size() < 2 || relative >= 1) return;
  terminal.print(
      fmt::format("note: together they were slower than the fastest worker alone, {:.2f} × what it "
                  "did by itself "
                  "just before (the machine may have been busier since). By the run's own figures "
                  "of rank {}, {}.",
                  relative, figures.balanced.fastest_rank, figures.balanced.fastest_time));
}

}  // namespace

void print_demo_table(Terminal& terminal, const DemoFigures& figures) {
  const auto scale = scale_of(figures.alone);
  terminal.print(terminal.coloured(
      Colour::bold, row("", "images/s", "fastest alone", "efficiency", "test accuracy")));
  for (std::size_t i = 0; i < figures.workers.size(); ++i) {
    terminal.print(row_of(figures.workers[i] + " alone", figures.alone[i], scale, false));
  }
  terminal.print(row_of("together, equal split", figures.equal, scale, true));
  terminal.print(terminal.coloured(Colour::green,
                                   row_of("together, balanced", figures.balanced, scale, true)));
  terminal.print("");
  terminal.print(
      "Efficiency is images/s divided by the sum of what the workers do alone, in the runs above, "
      "one "
      "after the other.");
  print_if_slower(terminal, figures, scale);
}

}  // namespace bimetal::cli
