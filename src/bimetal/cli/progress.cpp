#include "bimetal/cli/progress.h"

#include <fmt/format.h>

#include <cmath>

#include "bimetal/cli/terminal.h"
#include "bimetal/progress/text.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::milliseconds kLiveEvery{100};
constexpr std::chrono::milliseconds kPlainEvery{5000};

}  // namespace

std::string data_line(const progress::DataProgress& progress) {
  if (std::isnan(progress.part)) return progress.what;
  return fmt::format("{}: {:.0f} %, {} left", progress.what, 100 * progress.part,
                     progress::clock_text(progress.seconds_left));
}

void ProgressPrinter::on_phase(const std::string& what) {
  if (terminal_.live()) {
    terminal_.rewrite(what + " …");
  } else {
    terminal_.print(what);
  }
}

void ProgressPrinter::show_now_and_then(const std::function<std::string()>& line) {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_.live() ? kLiveEvery : kPlainEvery);
  if (terminal_.live()) {
    terminal_.rewrite(line());
  } else {
    terminal_.print(line());
  }
}

void ProgressPrinter::on_data(const progress::DataProgress& progress) {
  show_now_and_then([&] { return data_line(progress); });
}

void ProgressPrinter::on_step(const progress::Progress& progress) {
  show_now_and_then([&] { return line_(progress); });
}

void ProgressPrinter::on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) {
  auto line = fmt::format("epoch {}: ", epoch);
  for (const auto& metric : evaluation.metrics) {
    line += fmt::format("{} {}, ", progress::label_of(metric, evaluation.data),
                        terminal_.coloured(Colour::green, progress::text_of(metric)));
  }
  terminal_.print(line + fmt::format("{} loss {:.4f}", evaluation.data, evaluation.loss));
}

void ProgressPrinter::on_notice(const std::string& text) {
  terminal_.print(fmt::format("{} {}", terminal_.coloured(Colour::yellow, "note:"), text));
}

}  // namespace bimetal::cli
