#include "bimetal/cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace bimetal::cli {
namespace {

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::vector<std::string> aligned(const std::vector<TableRow>& rows, std::size_t left_columns) {
  std::vector<std::size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::vector<std::string> lines;
  for (const TableRow& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width_of(row[c]), ' ');
      if (c > 0) line += "  ";
      line += c < left_columns ? row[c] + padding : padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  }
  return lines;
}

std::string memory_text(std::uint64_t bytes) {
  if (bytes == 0) return "–";
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  if (mebibytes < 1024) return fmt::format("{:.0f} MiB", mebibytes);
  return fmt::format("{:.1f} GiB", mebibytes / 1024);
}

std::string figure_text(double value) {
  if (!(value > 0)) return "–";
  const int digits_before = static_cast<int>(std::floor(std::log10(value))) + 1;
  return fmt::format("{:.{}f}", value, std::clamp(3 - digits_before, 0, 6));
}

}  // namespace bimetal::cli
