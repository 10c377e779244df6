#include "bimetal/parallel/schedule/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <ranges>

#include "bimetal/base/error.h"

namespace bimetal::parallel::schedule {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void require_rows(const std::vector<std::vector<double>>& rows, std::size_t stages,
                  std::size_t units, const char* what) {
  const bool even = rows.size() == stages &&
                    std::ranges::all_of(rows, [&](const auto& row) { return row.size() == units; });
  if (!even) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("cutting {} units into {} stages: {} must have a number for each of "
                            "both (send: of stages but the last)",
                            units, stages, what));
  }
}

class Cutter {
 public:
  explicit Cutter(const CutProblem& problem)
      : problem_(problem), stages_(problem.seconds.size()), units_(units_of(problem)) {
    require_sound();
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      auto& seconds = seconds_.emplace_back(1, 0.0);
      for (std::size_t unit = 0; unit < units_; ++unit) {
        seconds.push_back(seconds.back() + problem.seconds[stage][unit]);
      }
      auto& fitting = fitting_.emplace_back(units_);
      for (auto begin = stage; problem.fitting && begin < units_; ++begin) {
        fitting[begin] = problem.fitting(stage, begin);
        require_ends(fitting[begin].size(), begin);
      }
    }
  }

  Cut best() const {
    Cut found{{}, kNever};
    const double rounds = problem_.micro_batches - 1;
    for (const double longest : lengths()) {
      // The sum is never less than that without a limit, nor the longest than the one before.
      if (rounds * longest + least_sum() >= found.seconds) break;
      auto [begins, sum] = within(longest);
      if (begins.empty()) continue;
      const double seconds = rounds * longest_of(begins) + sum;
      if (seconds < found.seconds) found = {std::move(begins), seconds};
    }
    if (found.begins.empty()) refuse_for_memory();
    return found;
  }

 private:
  static std::size_t units_of(const CutProblem& problem) {
    return problem.seconds.empty() ? 0 : problem.seconds.front().size();
  }

  void require_sound() const {
    if (stages_ == 0 || units_ < stages_) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("a model of {} units cannot be cut into {} stages: {} at most",
                              units_, stages_, units_));
    }
    require_rows(problem_.seconds, stages_, units_, "seconds");
    if (!problem_.send.empty()) require_rows(problem_.send, stages_ - 1, units_, "send");
  }

  void require_ends(std::size_t answered, std::size_t begin) const {
    if (answered == units_ - begin) return;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("cutting {} units into {} stages: fitting must say of {} ends whether "
                            "a stage from unit {} on fits, and says it of {}",
                            units_, stages_, units_ - begin, begin, answered));
  }

  bool fits(std::size_t stage, std::size_t begin, std::size_t end) const {
    return !problem_.fitting || fitting_[stage][begin][end - begin - 1];
  }

  /// Seconds of a stage that has the units [begin, end).
  double length(std::size_t stage, std::size_t begin, std::size_t end) const {
    const bool sends = stage < problem_.send.size();
    return seconds_[stage][end] - seconds_[stage][begin] +
           (sends ? problem_.send[stage][end - 1] : 0);
  }

  /// Whether as much time goes into sending behind both.
  bool sends_alike(std::size_t one, std::size_t other) const {
    const auto& send = problem_.send;
    if (one >= send.size() || other >= send.size())
      return one >= send.size() && other >= send.size();
    return send[one] == send[other];
  }

  /// Whether one before it is as fast, has the same room, and sends as fast.
  bool is_like_one_before(std::size_t stage) const {
    for (std::size_t other = 0; other < stage; ++other) {
      if (problem_.seconds[other] != problem_.seconds[stage] || !sends_alike(other, stage))
        continue;
      if (std::equal(fitting_[stage].begin() + static_cast<std::ptrdiff_t>(stage),
                     fitting_[stage].end(),
                     fitting_[other].begin() + static_cast<std::ptrdiff_t>(stage))) {
        return true;
      }
    }
    return false;
  }

  /// Every length that a stage may have, in rising order.
  std::vector<double> lengths() const {
    std::vector<double> all;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      if (is_like_one_before(stage)) continue;
      for (std::size_t begin = stage; begin < units_; ++begin) {
        for (std::size_t end = begin + 1; end <= units_; ++end) {
          if (fits(stage, begin, end)) all.push_back(length(stage, begin, end));
        }
      }
    }
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    const auto first = std::ranges::partition_point(
        all, [&](double longest) { return within(longest).first.empty(); });
    return {first, all.end()};
  }

  /// Where a stage that ends there may begin: one that begins behind it is no longer.
  std::size_t first_within(std::size_t stage, std::size_t end, double longest) const {
    const auto begins = std::views::iota(stage, end);
    return *std::ranges::partition_point(
        begins, [&](std::size_t begin) { return length(stage, begin, end) > longest; });
  }

  double least_sum() const {
    if (least_sum_ < 0) least_sum_ = within(kNever).second;
    return least_sum_;
  }

  /// The least sum with no stage longer than `longest`, and its cut; empty if there is none.
  std::pair<std::vector<std::size_t>, double> within(double longest) const {
    // least[unit]: of the stages so far, having all units before that one.
    std::vector<double> least(units_ + 1, kNever);
    std::vector<std::vector<std::size_t>> from(stages_, std::vector<std::size_t>(units_ + 1));
    least[0] = 0;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      std::vector<double> now(units_ + 1, kNever);
      for (std::size_t end = stage + 1; end <= units_; ++end) {
        for (auto begin = first_within(stage, end, longest); begin < end; ++begin) {
          const double seconds = length(stage, begin, end);
          if (least[begin] + seconds >= now[end] || !fits(stage, begin, end)) continue;
          now[end] = least[begin] + seconds;
          from[stage][end] = begin;
        }
      }
      least = std::move(now);
    }
    if (least[units_] == kNever) return {{}, kNever};
    std::vector<std::size_t> begins(stages_);
    for (std::size_t stage = stages_, end = units_; stage-- > 0;) {
      end = begins[stage] = from[stage][end];
    }
    return {begins, least[units_]};
  }

  double longest_of(const std::vector<std::size_t>& begins) const {
    double longest = 0;
    for (std::size_t stage = 0; stage < stages_; ++stage) {
      const auto end = stage + 1 < stages_ ? begins[stage + 1] : units_;
      longest = std::max(longest, length(stage, begins[stage], end));
    }
    return longest;
  }

  [[noreturn]] void refuse_for_memory() const {
    throw Error(ErrorCode::OutOfMemory,
                fmt::format("no cut of the model's {} units into {} stages fits into their memory; "
                            "take more stages, smaller micro-batches, recomputation or ZeRO",
                            units_, stages_));
  }

  const CutProblem& problem_;
  std::size_t stages_, units_;
  std::vector<std::vector<double>> seconds_;             ///< [stage][unit]: sums of all before it
  std::vector<std::vector<std::vector<bool>>> fitting_;  ///< [stage][begin], if anything is known
  mutable double least_sum_ = -1;
};

}  // namespace

Cut cut(const CutProblem& problem) {
  return Cutter(problem).best();
}

}  // namespace bimetal::parallel::schedule
