#include "bimetal/parallel/schedule/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <ranges>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/simulate.h"

namespace bimetal::parallel::schedule {
namespace {

// The times of a cut model's pieces, and whether they fit: a CutProblem's answers, in tables.

class PieceLengths {
 public:
  PieceLengths(const PieceLengths&) = delete;
  PieceLengths& operator=(const PieceLengths&) = delete;

  /// `problem` must outlive it. Errors: cut()'s InvalidArgument.
  explicit PieceLengths(const CutProblem& problem);

  std::size_t stages() const noexcept { return stages_; }
  std::size_t pieces() const noexcept { return pieces_; }
  std::size_t units() const noexcept { return units_; }
  std::size_t stage_of(std::size_t piece) const noexcept { return piece % stages_; }

  /// Seconds of a piece that has the units [begin, end), with the time to send its output.
  double length(std::size_t piece, std::size_t begin, std::size_t end) const {
    const auto& [before, send, fitting] = rows_[piece];
    return before[end] - before[begin] + (send ? send[end - 1] : 0);
  }
  bool fits(std::size_t piece, std::size_t begin, std::size_t end) const {
    const auto* const fitting = rows_[piece].fitting;
    return !fitting || fitting[begin][end - begin - 1];
  }
  /// Whether one before it is as fast, has the same room, and sends as fast.
  bool is_like_one_before(std::size_t piece) const;

 private:
  void require_sound() const;
  void ask_what_fits(std::size_t stage);
  bool sends_alike(std::size_t one, std::size_t other) const;

  /// The costs of one piece, by unit, for the lookups that are most frequent.
  struct Row {
    const double* before;              ///< seconds of all units before it
    const double* send;                ///< seconds to send its output; nullptr: nothing is
                                       ///< sent
    const std::vector<bool>* fitting;  ///< by end; nullptr: nothing is known
  };

  const CutProblem& problem_;
  const std::size_t stages_, pieces_, units_;
  std::vector<std::vector<double>> before_;              ///< by stage
  std::vector<Row> rows_;                                ///< by piece
  std::vector<std::vector<std::vector<bool>>> fitting_;  ///< [stage][begin], if anything is known
};

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

constexpr double kNever = std::numeric_limits<double>::infinity();

using Begins = std::vector<std::size_t>;

std::size_t end_of(const PieceLengths& lengths, const Begins& begins, std::size_t piece) {
  return piece + 1 < begins.size() ? begins[piece + 1] : lengths.units();
}

/// The cut whose longest piece counts, and the sum of all: one chunk's step, and a bound of that of
/// several, whose stages are no longer than that many times the longest piece.
class Cutter {
 public:
  Cutter(const PieceLengths& lengths, const CutProblem& problem)
      : lengths_(lengths),
        pieces_(lengths.pieces()),
        units_(lengths.units()),
        rounds_(problem.chunks * (problem.chunks * problem.micro_batches - 1.0)) {}

  Begins best() const {
    Begins found;
    double least = kNever;
    for (const double longest : longest_pieces()) {
      // The sum is never less than that without a limit, nor the longest than the one before.
      if (rounds_ * longest + least_sum() >= least) break;
      auto [begins, sum] = within(longest);
      if (begins.empty()) continue;
      const double seconds = rounds_ * longest_of(begins) + sum;
      if (seconds >= least) continue;
      least = seconds;
      found = std::move(begins);
    }
    if (found.empty()) refuse_for_memory();
    return found;
  }

 private:
  /// Every length that a piece may have, in rising order.
  std::vector<double> longest_pieces() const {
    std::vector<double> all;
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      if (lengths_.is_like_one_before(piece)) continue;
      for (std::size_t begin = piece; begin < units_; ++begin) {
        for (std::size_t end = begin + 1; end <= units_; ++end) {
          if (lengths_.fits(piece, begin, end)) all.push_back(lengths_.length(piece, begin, end));
        }
      }
    }
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    const auto first = std::ranges::partition_point(
        all, [&](double longest) { return within(longest).first.empty(); });
    return {first, all.end()};
  }

  /// The first unit at which a piece that ends there may begin. One that begins later is no longer.
  std::size_t first_within(std::size_t piece, std::size_t end, double longest) const {
    const auto begins = std::views::iota(piece, end);
    return *std::ranges::partition_point(
        begins, [&](std::size_t begin) { return lengths_.length(piece, begin, end) > longest; });
  }

  double least_sum() const {
    if (least_sum_ < 0) least_sum_ = within(kNever).second;
    return least_sum_;
  }

  /// The least sum with no piece longer than `longest`, and its cut; empty if there is none.
  std::pair<Begins, double> within(double longest) const {
    // least[unit]: for the pieces so far, having all units before that one.
    std::vector<double> least(units_ + 1, kNever);
    std::vector<Begins> from(pieces_, Begins(units_ + 1));
    least[0] = 0;
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      std::vector<double> now(units_ + 1, kNever);
      for (std::size_t end = piece + 1; end <= units_; ++end) {
        for (auto begin = first_within(piece, end, longest); begin < end; ++begin) {
          const double seconds = lengths_.length(piece, begin, end);
          if (least[begin] + seconds >= now[end] || !lengths_.fits(piece, begin, end)) continue;
          now[end] = least[begin] + seconds;
          from[piece][end] = begin;
        }
      }
      least = std::move(now);
    }
    if (least[units_] == kNever) return {{}, kNever};
    Begins begins(pieces_);
    for (std::size_t piece = pieces_, end = units_; piece-- > 0;) {
      end = begins[piece] = from[piece][end];
    }
    return {begins, least[units_]};
  }

  double longest_of(const Begins& begins) const {
    double longest = 0;
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      const auto end = end_of(lengths_, begins, piece);
      longest = std::max(longest, lengths_.length(piece, begins[piece], end));
    }
    return longest;
  }

  [[noreturn]] void refuse_for_memory() const {
    throw Error(ErrorCode::OutOfMemory,
                fmt::format("no cut of the model's {} units into {} stages fits into their memory; "
                            "take more stages, smaller micro-batches, recomputation or ZeRO",
                            units_, lengths_.stages()));
  }

  const PieceLengths& lengths_;
  const std::size_t pieces_, units_;
  const double rounds_;  ///< how often the longest piece counts, beside all of them once
  mutable double least_sum_ = -1;
};

/// Whether there are few enough pieces to look closely.
bool is_small(const PieceLengths& lengths) {
  return lengths.pieces() <= 12;
}

/// Cuts to begin with: this one, and all units but one for each other piece at either end.
std::vector<Begins> starts_of(const PieceLengths& lengths, Begins best) {
  std::vector<Begins> starts = {std::move(best)};
  if (!is_small(lengths)) return starts;
  Begins front(lengths.pieces()), back(lengths.pieces());
  const auto spare = lengths.units() - lengths.pieces();
  for (std::size_t piece = 0; piece < lengths.pieces(); ++piece) {
    front[piece] = piece == 0 ? 0 : piece + spare;
    back[piece] = piece;
  }
  starts.insert(starts.end(), {std::move(front), std::move(back)});
  return starts;
}

/// Passes a unit on from one piece to another, or two of them at a time, by moving all cuts between
/// these, as long as a step gets shorter and all pieces fit.
class Mover {
 public:
  Mover(const PieceLengths& lengths, int micro_batches, Begins begins)
      : lengths_(lengths),
        micro_batches_(micro_batches),
        begins_(std::move(begins)),
        seconds_of_(begins_.size()),
        seconds_(seconds_of_step()) {}

  /// Improves a cut that fits.
  Cut moved() && {
    while (move(1) || (is_small(lengths_) && move(2))) {
    }
    return {std::move(begins_), seconds_};
  }

  double seconds() const noexcept { return seconds_; }

  /// Whether all pieces fit.
  bool fits() const {
    for (std::size_t piece = 0; piece < begins_.size(); ++piece) {
      if (!lengths_.fits(piece, begins_[piece], end_of(lengths_, begins_, piece))) return false;
    }
    return true;
  }

 private:
  double seconds_of_step() {
    for (std::size_t piece = 0; piece < begins_.size(); ++piece) {
      seconds_of_[piece] = lengths_.length(piece, begins_[piece], end_of(lengths_, begins_, piece));
    }
    return plain_bound(seconds_of_, micro_batches_, lengths_.stages());
  }

  bool is_rising() const {
    return std::ranges::adjacent_find(begins_, std::greater_equal()) == begins_.end() &&
           begins_.back() < lengths_.units();
  }

  bool take_if_better() {
    if (!is_rising()) return false;
    const double seconds = seconds_of_step();
    if (seconds >= seconds_ || !fits()) return false;
    seconds_ = seconds;
    return true;
  }

  void shift(std::size_t first, std::size_t last, bool ahead) {
    for (auto cut = first; cut <= last; ++cut) begins_[cut] += ahead ? 1 : std::size_t(-1);
  }

  /// So many units, from any pieces to any; whether that was better.
  bool move(int units) {
    for (std::size_t first = 1; first < begins_.size(); ++first) {
      for (std::size_t last = first; last < begins_.size(); ++last) {
        for (const bool ahead : {false, true}) {
          shift(first, last, ahead);
          if (units > 1 ? move(units - 1) : take_if_better()) return true;
          shift(first, last, !ahead);
        }
      }
    }
    return false;
  }

  const PieceLengths& lengths_;
  const int micro_batches_;
  Begins begins_;
  std::vector<double> seconds_of_;  ///< each piece
  double seconds_;
};

}  // namespace

Cut cut(const CutProblem& problem) {
  const PieceLengths lengths(problem);
  auto begins = Cutter(lengths, problem).best();
  if (problem.chunks == 1) {
    const double seconds = Mover(lengths, problem.micro_batches, begins).seconds();
    return {std::move(begins), seconds};
  }
  Cut best{{}, kNever};
  for (auto& start : starts_of(lengths, std::move(begins))) {
    Mover mover(lengths, problem.micro_batches, std::move(start));
    if (!mover.fits()) continue;
    auto found = std::move(mover).moved();
    if (found.seconds < best.seconds) best = std::move(found);
  }
  return best;
}

}  // namespace bimetal::parallel::schedule
