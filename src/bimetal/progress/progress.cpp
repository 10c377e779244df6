#include "bimetal/progress/progress.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/progress/text.h"

namespace bimetal::progress {
namespace {

constexpr std::size_t kMost = 6;

/// "410 : 102"; of many workers the first ones that have a share: others may have left long ago.
template <typename Number>
std::string series(const std::vector<Number>& values, const std::vector<std::int64_t>& shares,
                   const char* separator) {
  std::string text;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values.size() > kMost && i < shares.size() && shares[i] == 0) continue;
    if (shown > 0) text += separator;
    if (++shown > kMost) return text + "…";
    text += fmt::format("{:.0f}", static_cast<double>(values[i]));
  }
  return text;
}

}  // namespace

std::string rate_line(const Progress& progress) {
  auto line = fmt::format("{:.0f} {}/s", progress.samples_per_s, progress.counts);
  if (progress.shares.size() <= 1) return line;
  const auto shares = fmt::format("shares {}", series(progress.shares, progress.shares, " : "));
  if (std::isnan(progress.efficiency)) return fmt::format("{}  {}", line, shares);
  return fmt::format("efficiency {:.0f} %  {} ({})  {}", 100 * progress.efficiency, line,
                     series(progress.rank_samples_per_s, progress.shares, " + "), shares);
}

std::string progress_line(const Progress& progress) {
  return fmt::format("step {}/{}  {} left  loss {:.4f}  {}  epoch {}/{}", progress.step,
                     progress.steps, clock_text(progress.seconds_left), progress.loss,
                     rate_line(progress), progress.epoch, progress.epochs);
}

}  // namespace bimetal::progress
