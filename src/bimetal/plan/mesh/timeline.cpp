#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/plan.h"

namespace bimetal::plan {
namespace {

using parallel::schedule::Timed;
using parallel::schedule::What;

constexpr double kWidth = 1000, kLeft = 180, kRow = 28, kTop = 40, kGap = 6;
constexpr int kTicks = 5;

std::string_view colour_of(What what) {
  switch (what) {
    case What::forward: return "#8ecae6";
    case What::backward: return "#ffb703";
    case What::backward_input: return "#fb8500";
    case What::backward_weight: return "#b7b7a4";
  }
  return "";
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

/// Later chunks are lighter.
double shade_of(int chunk) {
  return 1 / (1 + 0.7 * chunk);
}

std::string box(const Timed& timed, double top, double scale) {
  const double x = kLeft + timed.begin * scale;
  const double width = (timed.end - timed.begin) * scale;
  const auto label = to_string(timed.action);
  std::string svg = fmt::format(
      R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{}" fill="{}" fill-opacity="{:.2f}" stroke="#fff" stroke-width="0.5"><title>{}: {} to {}</title></rect>)",
      x, top, width, kRow, colour_of(timed.action.what), shade_of(timed.action.chunk), label,
      seconds_text(timed.begin), seconds_text(timed.end));
  if (width > 9.0 * static_cast<double>(label.size())) {
    svg += fmt::format(R"(<text x="{:.2f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                       x + width / 2, top + kRow / 2 + 4, label);
  }
  return svg + "\n";
}

int chunks_in(const parallel::schedule::Simulation& run) {
  int most = 0;
  for (const auto& stage : run.stages) {
    for (const auto& timed : stage) most = std::max(most, timed.action.chunk);
  }
  return most + 1;
}

std::string legend(double top, int chunks) {
  constexpr std::pair<What, std::string_view> kEntries[] = {
      {What::forward, "F forward"},
      {What::backward, "B backward"},
      {What::backward_input, "I backward of inputs"},
      {What::backward_weight, "W backward of weights"}};
  std::string svg;
  double x = kLeft;
  for (const auto& [what, name] : kEntries) {
    svg += fmt::format(
        R"(<rect x="{}" y="{}" width="12" height="12" fill="{}"/><text x="{}" y="{}">{}</text>)", x,
        top, colour_of(what), x + 17, top + 10, name);
    x += 190;
  }
  if (chunks > 1) {
    svg += fmt::format(R"(<text x="{}" y="{}">.1 and lighter: later chunks</text>)", x, top + 10);
  }
  return svg + "\n";
}

}  // namespace

std::string timeline_svg(const std::string& title, const std::vector<std::string>& names,
                         const parallel::schedule::Simulation& run) {
  if (names.size() != run.stages.size()) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("{} names for a timeline of {} stages",
                                                        names.size(), run.stages.size()));
  }
  const auto rows = static_cast<double>(names.size());
  const double bottom = kTop + rows * (kRow + kGap);
  const double scale = run.seconds > 0 ? kWidth / run.seconds : 0;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n<text x=\"10\" y=\"22\" font-size=\"14\">{2}</text>\n",
      kLeft + kWidth + 40, bottom + 60, escaped(title));
  for (std::size_t s = 0; s < names.size(); ++s) {
    const double top = kTop + static_cast<double>(s) * (kRow + kGap);
    svg += fmt::format(
        "<text x=\"10\" y=\"{:.1f}\">{}</text><rect x=\"{}\" y=\"{:.1f}\" width=\"{}\" "
        "height=\"{}\" fill=\"#f1f1f1\"/>\n",
        top + kRow / 2 + 4, escaped(names[s]), kLeft, top, kWidth, kRow);
    for (const auto& timed : run.stages[s]) svg += box(timed, top, scale);
  }
  for (int tick = 0; tick <= kTicks; ++tick) {
    const double part = static_cast<double>(tick) / kTicks;
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                       kLeft + part * kWidth, bottom + 16, seconds_text(part * run.seconds));
  }
  return svg + legend(bottom + 32, chunks_in(run)) + "</svg>\n";
}

}  // namespace bimetal::plan
