#include "bimetal/cli/summary.h"

#include <fmt/format.h>

#include <cmath>

#include "bimetal/cli/progress.h"

namespace bimetal::cli {
namespace {

void print_workers(Terminal& terminal, const train::Report& report) {
  terminal.print(terminal.coloured(
      Colour::bold, fmt::format("{:>4}  {:<36} {:>7} {:>15} {:>9} {:>14} {:>9}", "rank", "worker",
                                "share", "images/s alone", "compute", "communication", "waiting")));
  for (const auto& worker : report.workers) {
    const auto where = fmt::format("{} on {}", worker.device, worker.host);
    terminal.print(
        fmt::format("{:>4}  {:<36} {:>5.1f} % {:>15.0f} {:>7.1f} s {:>12.1f} s {:>7.1f} s",
                    worker.rank, where, 100 * worker.share, worker.samples_per_s_alone,
                    worker.compute_s, worker.communicate_s, worker.wait_s));
  }
}

}  // namespace

void print_summary(Terminal& terminal, const train::Report& report) {
  std::string line =
      fmt::format("{} {} steps in {}: {:.0f} images/s, loss {:.4f}",
                  report.interrupted ? "stopped after" : "trained", report.steps,
                  clock_text(report.elapsed_s), report.samples_per_s, report.train_loss);
  if (!std::isnan(report.test_accuracy)) {
    line += fmt::format(", test accuracy {:.2f} %", 100 * report.test_accuracy);
  }
  if (report.world_size > 1) line += fmt::format(", efficiency {:.0f} %", 100 * report.efficiency);
  terminal.print(terminal.coloured(Colour::bold, line));
  if (report.world_size > 1) print_workers(terminal, report);
}

}  // namespace bimetal::cli
