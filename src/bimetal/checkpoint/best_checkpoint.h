#pragma once
// The best checkpoint of a run, beside the newest ones: DIR/best, which is a folder of checkpoints
// that has one.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "bimetal/progress/metrics.h"
#include "bimetal/progress/report.h"

namespace bimetal::checkpoint {

/// Of a folder of checkpoints.
inline constexpr std::string_view kBestFolder = "best";

/// Whether the first is better: by the task's first metric, if that is a part of a whole (an
/// accuracy), the loss deciding between equal ones, else by the loss. Where the figures of `a` are
/// not finite it never is.
bool is_better(const progress::Evaluation& a, const progress::Evaluation& b);

/// Rank 0's. Use from one thread.
class BestCheckpoint {
 public:
  /// `dir`: of the job's checkpoints; empty: only the figures are kept. A run that goes on from a
  /// step above 0 goes on with the best one that DIR/best has of the steps up to there.
  BestCheckpoint(std::filesystem::path dir, std::int64_t start_step);

  /// If this is the best evaluation so far, `checkpoint`, which must be of this step, becomes
  /// DIR/best's: its files by further names of theirs, or copied where the file system knows none.
  /// An empty path: there is none. Error(System) names what could not be written.
  void offer(const std::filesystem::path& checkpoint, std::int64_t step,
             const progress::Evaluation& evaluation);

  /// None before the first offer with finite figures.
  const std::optional<progress::BestReport>& best() const noexcept { return best_; }

 private:
  void keep(const std::filesystem::path& checkpoint);

  std::filesystem::path folder_;
  std::optional<progress::BestReport> best_;
};

}  // namespace bimetal::checkpoint
