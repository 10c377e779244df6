#include "bimetal/cli/train/rank_observer.h"

#include <fmt/format.h>

#include "bimetal/cli/train/summary.h"

namespace bimetal::cli {

void print_if_kept_nowhere(Terminal& terminal, const job::JobConfig& job) {
  if (!job.checkpoint.dir.empty()) return;
  terminal.print(
      fmt::format("{} nothing of this training will be kept: the job has no checkpoint.dir",
                  terminal.coloured(Colour::yellow, "note:")));
}

void print_end(Terminal& terminal, const progress::Report& report, const std::string& checkpoint) {
  if (report.interrupted && report.workers.empty()) {
    terminal.print("stopped before training began");
    return;
  }
  print_summary(terminal, report);
  if (checkpoint.empty()) {
    terminal.print("nothing was saved: the job has no checkpoint.dir");
  } else if (report.interrupted) {
    terminal.print(fmt::format("checkpoint {}; go on with --resume {}", checkpoint, checkpoint));
  } else {
    terminal.print(fmt::format("checkpoint {}", checkpoint));
  }
}

}  // namespace bimetal::cli
