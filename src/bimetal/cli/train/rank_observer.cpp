#include "bimetal/cli/train/rank_observer.h"

#include <fmt/format.h>

#include "bimetal/cli/train/summary.h"

namespace bimetal::cli {

void print_end(Terminal& terminal, const progress::Report& report, const std::string& checkpoint) {
  if (report.interrupted && report.workers.empty()) {
    terminal.print("stopped before training began");
    return;
  }
  print_summary(terminal, report);
  if (checkpoint.empty()) {
    if (report.interrupted) {
      terminal.print("nothing was saved: the job has no [checkpoint] dir");
    }
  } else if (report.interrupted) {
    terminal.print(fmt::format("checkpoint {}; go on with --resume {}", checkpoint, checkpoint));
  } else {
    terminal.print(fmt::format("checkpoint {}", checkpoint));
  }
}

}  // namespace bimetal::cli
