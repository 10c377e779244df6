#pragma once
// The times of a cut model's pieces, and whether they fit: a CutProblem's answers, in tables.

#include <cstddef>
#include <vector>

#include "bimetal/parallel/schedule/cut.h"

namespace bimetal::parallel::schedule {

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

  /// Seconds of a piece that has the units [begin, end), with what it takes to send.
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

  /// Of a piece, by unit, where it is looked up most.
  struct Row {
    const double* before;              ///< seconds of all units before it
    const double* send;                ///< seconds to send what it gives; nullptr: nothing is sent
    const std::vector<bool>* fitting;  ///< by end; nullptr: nothing is known
  };

  const CutProblem& problem_;
  const std::size_t stages_, pieces_, units_;
  std::vector<std::vector<double>> before_;              ///< by stage
  std::vector<Row> rows_;                                ///< by piece
  std::vector<std::vector<std::vector<bool>>> fitting_;  ///< [stage][begin], if anything is known
};

}  // namespace bimetal::parallel::schedule
