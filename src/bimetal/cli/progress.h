#pragma once
// Rank 0's display while it trains.

#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "bimetal/cli/terminal.h"
#include "bimetal/progress/observer.h"

namespace bimetal::cli {

/// On a terminal one live line; elsewhere a plain line every few seconds. Ends of epochs and
/// notices are lines that stay.
class ProgressPrinter : public progress::Observer {
 public:
  using Line = std::function<std::string(const progress::Progress&)>;
  ProgressPrinter(Terminal& terminal, Line line) : terminal_(terminal), line_(std::move(line)) {}

  void on_phase(const std::string& what) override;
  void on_data(const progress::DataProgress& progress) override;
  void on_step(const progress::Progress& progress) override;
  void on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) override;
  void on_notice(const std::string& text) override;

 private:
  using Clock = std::chrono::steady_clock;

  void show_now_and_then(const std::function<std::string()>& line);

  Terminal& terminal_;
  Line line_;
  Clock::time_point next_{};
};

/// "sending 29.5 MiB of data to 1 machine: 42 %, 0:07 left".
std::string data_line(const progress::DataProgress& progress);

}  // namespace bimetal::cli
