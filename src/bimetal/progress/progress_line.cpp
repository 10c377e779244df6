#include "bimetal/progress/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "bimetal/progress/clock_text.h"

namespace bimetal::progress {
namespace {

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

std::string rate_line(const Progress& progress) {
  auto line = fmt::format("{:.0f} {}/s", progress.samples_per_s, progress.counts);
  if (progress.shares.size() <= 1) return line;
  const auto shares = fmt::format("shares {}", series(progress.shares, " : "));
  if (std::isnan(progress.efficiency)) return fmt::format("{}  {}", line, shares);
  return fmt::format("efficiency {:.0f} %  {} ({})  {}", 100 * progress.efficiency, line,
                     series(progress.rank_samples_per_s, " + "), shares);
}

std::string progress_line(const Progress& progress) {
  return fmt::format("step {}/{}  {} left  loss {:.4f}  {}  epoch {}/{}", progress.step,
                     progress.steps, clock_text(progress.seconds_left), progress.loss,
                     rate_line(progress), progress.epoch, progress.epochs);
}

}  // namespace bimetal::progress
