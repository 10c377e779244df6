#include "bimetal/cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::milliseconds kLiveEvery{100};
constexpr std::chrono::milliseconds kPlainEvery{5000};

/// "410 : 102"; of many workers the first ones.
template <typename Number>
std::string series(const std::vector<Number>& values, const char* separator) {
  constexpr std::size_t kMost = 6;
  std::string text;
  for (std::size_t i = 0; i < std::min(values.size(), kMost); ++i) {
    if (i > 0) text += separator;
    text += fmt::format("{:.0f}", static_cast<double>(values[i]));
  }
  return values.size() > kMost ? text + separator + "…" : text;
}

}  // namespace

std::string rate_line(const progress::Progress& progress) {
  auto line = fmt::format("{:.0f} {}/s", progress.samples_per_s, progress.counts);
  if (progress.shares.size() <= 1) return line;
  return fmt::format("efficiency {:.0f} %  {} ({})  shares {}", 100 * progress.efficiency, line,
                     series(progress.rank_samples_per_s, " + "), series(progress.shares, " : "));
}

std::string progress_line(const progress::Progress& progress) {
  return fmt::format("step {}/{}  {} left  loss {:.4f}  {}  epoch {}/{}", progress.step,
                     progress.steps, clock_text(progress.seconds_left), progress.loss,
                     rate_line(progress), progress.epoch, progress.epochs);
}

std::string data_line(const progress::DataProgress& progress) {
  if (std::isnan(progress.part)) return progress.what;
  return fmt::format("{}: {:.0f} %, {} left", progress.what, 100 * progress.part,
                     clock_text(progress.seconds_left));
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
