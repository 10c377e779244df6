#include "bimetal/parallel/schedule/piece_lengths.h"

#include <fmt/format.h>

#include <algorithm>

#include "bimetal/base/error.h"

namespace bimetal::parallel::schedule {
namespace {

[[noreturn]] void refuse_cut(const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, why);
}

void require_rows(const std::vector<std::vector<double>>& rows, std::size_t count,
                  std::size_t units, std::size_t stages, const char* what) {
  const bool even = rows.size() == count &&
                    std::ranges::all_of(rows, [&](const auto& row) { return row.size() == units; });
  if (even) return;
  refuse_cut(
      fmt::format("cutting {} units into {} stages: {} must have a number for each of both (send: "
                  "of stages but the last, unless that has several chunks)",
                  units, stages, what));
}

}  // namespace

PieceLengths::PieceLengths(const CutProblem& problem)
    : problem_(problem),
      stages_(problem.seconds.size()),
      pieces_(stages_ * static_cast<std::size_t>(problem.chunks)),
      units_(stages_ == 0 ? 0 : problem.seconds.front().size()) {
  require_sound();
  for (std::size_t stage = 0; stage < stages_; ++stage) {
    auto& before = before_.emplace_back(1, 0.0);
    for (const double unit : problem.seconds[stage]) before.push_back(before.back() + unit);
    ask_what_fits(stage);
  }
  for (std::size_t piece = 0; piece < pieces_; ++piece) {
    const bool sends = !problem.send.empty() && piece + 1 < pieces_;
    const auto stage = stage_of(piece);
    rows_.push_back({.before = before_[stage].data(),
                     .send = sends ? problem.send[stage].data() : nullptr,
                     .fitting = problem.fitting ? fitting_[stage].data() : nullptr});
  }
}

void PieceLengths::ask_what_fits(std::size_t stage) {
  auto& fitting = fitting_.emplace_back(units_);
  for (auto begin = stage; problem_.fitting && begin < units_; ++begin) {
    fitting[begin] = problem_.fitting(stage, begin);
    if (fitting[begin].size() == units_ - begin) continue;
    refuse_cut(
        fmt::format("cutting {} units into {} stages: fitting must say of {} ends whether a stage "
                    "from unit {} on fits, and says it of {}",
                    units_, stages_, units_ - begin, begin, fitting[begin].size()));
  }
}

void PieceLengths::require_sound() const {
  if (pieces_ == 0 || units_ < pieces_) {
    refuse_cut(fmt::format("a model of {} units cannot be cut into {} {}: {} at most", units_,
                           pieces_, problem_.chunks == 1 ? "stages" : "pieces", units_));
  }
  require_rows(problem_.seconds, stages_, units_, stages_, "seconds");
  const auto ways = problem_.chunks == 1 ? stages_ - 1 : stages_;
  if (!problem_.send.empty()) require_rows(problem_.send, ways, units_, stages_, "send");
}

/// Whether as much time goes into sending behind both.
bool PieceLengths::sends_alike(std::size_t one, std::size_t other) const {
  const bool both = rows_[one].send && rows_[other].send;
  if (!both) return rows_[one].send == rows_[other].send;
  return problem_.send[stage_of(one)] == problem_.send[stage_of(other)];
}

bool PieceLengths::is_like_one_before(std::size_t piece) const {
  const auto stage = stage_of(piece);
  for (std::size_t other = 0; other < piece; ++other) {
    const auto before = stage_of(other);
    if (problem_.seconds[before] != problem_.seconds[stage] || !sends_alike(other, piece)) continue;
    const auto from = static_cast<std::ptrdiff_t>(piece);
    if (std::equal(fitting_[stage].begin() + from, fitting_[stage].end(),
                   fitting_[before].begin() + from)) {
      return true;
    }
  }
  return false;
}

}  // namespace bimetal::parallel::schedule
