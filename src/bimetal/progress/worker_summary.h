#pragma once
// The summary that each rank sends to all others at a run's end, so that every rank holds the whole
// report.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"

namespace bimetal::progress {

// The figures that ranks exchange once per step: a few numbers each, all-gathered behind the
// gradients, so that every rank takes the same decision before the optimizer changes anything.

/// How a rank's share fitted into its memory.
enum class Fit : std::uint8_t {
  fits,
  try_smaller_pieces,  ///< it did not, but will be computed in smaller micro-batches next time
  too_large,           ///< it did not, and micro-batches cannot be made smaller: less work, please
  try_recomputing,     ///< it did not, but will be with activations computed again next time
  try_without_graphs,  ///< it did not, but will be launched kernel by kernel next time
};

/// Measurements of a rank without samples beside the others' work; 0 samples: none.
struct ShadowFigures {
  std::int64_t batch = 0;
  double seconds = 0;  ///< as RankFigures::compute_seconds
};

/// A rank's requests to all, after this step.
struct Wishes {
  bool stop = false;    ///< the job's end
  bool save = false;    ///< a checkpoint: one is due by its clock
  bool leave = false;   ///< to be without it from then on
  bool change = false;  ///< a new epoch of members: somebody waits to come in
  int dismiss = -1;     ///< a rank is to leave, as if it had asked to
  int profile = 0;      ///< so many of the next steps are to be profiled
  bool tell = false;    ///< its log has lines for those who watch

  /// Adds the wishes of another rank that counts as the same one.
  Wishes& operator|=(const Wishes& other);
};

struct RankFigures {
  std::int64_t batch = 0;      ///< weight of this rank's samples: their number where each weighs 1
  double compute_seconds = 0;  ///< forward, backward and the previous step's update
  /// The part of these seconds in which ranks that compute one replica together wait in their sums:
  /// a part of that replica's time, and no work.
  double sum_seconds = 0;
  double loss_sum = 0;  ///< of its samples
  Fit fit = Fit::fits;
  Wishes wishes = {};
  /// The norm of the summed gradients, where the step asks for it; not finite if they are not.
  double gradient_norm = 0;
  /// This rank's totals since the run's start, up to the step before: for users who watch.
  double communicate_seconds = 0, wait_seconds = 0;
  std::uint64_t bytes_sent = 0;
  double memory_bytes = 0;  ///< that its process has now
  ShadowFigures shadow = {};
};

/// The exchange of one step. One in flight at a time; its buffers live until that has ended.
class FigureExchange {
 public:
  explicit FigureExchange(comm::Group group);

  /// Issues the all-gather and returns at once. Collective, in the order of the group's calls.
  void start(const RankFigures& mine, Deadline deadline);

  /// One entry per rank; valid until the next start(). Rethrows the fabric's errors.
  std::span<const RankFigures> wait();

  /// The numbers that wait() has decoded, for a rank that has not got them; until the next start().
  std::span<const double> numbers() const noexcept { return buffers_->gathered; }
  /// In the place of start() and wait(): another rank's numbers(). Error(InvalidArgument) if they
  /// are of another world.
  std::span<const RankFigures> take(std::span<const double> numbers);

 private:
  static constexpr std::size_t kNumbers = 13;

  std::span<const RankFigures> decode_all();

  comm::Group group_;
  struct Buffers {
    std::array<double, kNumbers> mine{};
    std::vector<double> gathered;
  };
  std::shared_ptr<Buffers> buffers_;
  std::vector<RankFigures> figures_;
  comm::Work work_;
};

struct WorkerSummary {
  std::string host;
  std::string device;
  double elapsed_seconds = 0;
  double communicate_seconds = 0;
  double wait_seconds = 0;
  std::uint64_t bytes_sent = 0;
};

/// One entry per rank. Collective.
std::vector<WorkerSummary> gather_summaries(comm::Group group, const WorkerSummary& mine,
                                            std::chrono::milliseconds timeout);

}  // namespace bimetal::progress
