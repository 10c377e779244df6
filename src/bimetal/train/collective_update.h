#pragma once
// The second half of every step, which all ranks do together, in stages: the gradients are summed,
// inspected, the ranks agree on whether the step counts, and only then the parameters change.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/device/stream_timer.h"
#include "bimetal/parallel/sync.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/task/batch_norm.h"
#include "bimetal/train/gradient_stages.h"

namespace bimetal::train {

/// A step of which not all was known when it ended, once it is.
struct EarlierStep {
  std::int64_t number = 0;
  std::vector<progress::RankFigures> figures = {};  ///< one per rank
  bool skipped = false;
};

struct StepResult {
  std::span<const progress::RankFigures> figures;  ///< one per rank; valid until the next step
  bool applied =
      false;  ///< false: a share did not fit, nothing changed, the step is to be repeated
  bool skipped = false;  ///< applied, but for the update: float16 could not hold the gradients
  double communicate_seconds = 0;
  double wait_seconds = 0;
  /// The norm and `skipped` are not known yet. For a rank alone, neither are its loss and seconds
  /// of computing. They come as `earlier` of the next step's result, applied or not, or by
  /// CollectiveUpdate::read_late().
  bool unread = false;
  std::optional<EarlierStep> earlier = {};
};

/// Figures of a share that are known once the device has computed it. Nobody has waited for them.
struct Unread {
  torch::Tensor losses;       ///< of its pieces
  double launch_seconds = 0;  ///< that the host took
  device::StreamTimer timer;  ///< of the device, begun and ended
};

/// Use from one thread.
class CollectiveUpdate {
 public:
  CollectiveUpdate(parallel::Sync sync, std::chrono::milliseconds timeout,
                   const UpdateOptions& options = {});

  /// Running statistics of the model, which each applied step moves.
  void set_statistics(std::vector<task::BatchStatistics> statistics) {
    statistics_ = std::move(statistics);
  }

  /// Ends step number `step`, in which this rank has done `mine`, whose totals of all steps so far
  /// are filled in here. Collective. Errors: InvalidArgument, before anything is exchanged, for an
  /// optimizer of other tensors than the store trains; NotFinite, on every rank and with the
  /// parameters unchanged (but for a store that updates in backward), naming the step and the ranks
  /// whose loss is no number, or as GradientStages::decide has it; the fabric's.
  /// `unread`: loss and seconds of `mine`, which the host reads once this rank's gradients are on
  /// their way, when the device has come to them. A rank alone that decides_there() reads them a
  /// step later. A late figure may show an error: then the error has its step's number, and that
  /// step's update is dropped.
  StepResult run(std::int64_t step, progress::RankFigures mine, torch::optim::Optimizer& optimizer,
                 std::optional<Unread> unread = {});

  /// From now on each rank's `device` decides by itself what becomes of its gradients, which are
  /// the same on all ranks, and so are the devices; the host learns of it a step later. The same on
  /// all ranks, with `unread` in every step of a rank alone. A step that the optimizer cannot leave
  /// out is waited for all the same.
  void decide_on(std::optional<torch::Device> device) { decides_on_ = device; }
  bool decides_there() const noexcept { return decides_on_.has_value(); }

  /// The late figures of the last step, if there are any; waits for the device. Errors: those of
  /// run() on a step's numbers; Timeout.
  std::optional<EarlierStep> read_late();

  /// The stages of the gradients. The step's gradients are multiplied by their loss_scale().
  GradientStages& stages() noexcept { return stages_; }

  /// The last step that was updated; 0: none. If a rank is lost, this rank may have all gradients
  /// of a step without having heard that the others agreed on it. Ranks that have heard so have
  /// updated. (With a store that keeps copies.)
  std::int64_t updated() const noexcept { return updated_; }
  /// All ranks' figures of that step, for ranks that have not heard.
  std::span<const double> agreed_numbers() const noexcept { return exchange_.numbers(); }
  /// Makes the update of `step` by another rank's figures. Error(PeerLost) if the gradients are not
  /// all here; those of run().
  void catch_up(std::int64_t step, std::span<const double> numbers,
                torch::optim::Optimizer& optimizer);

  /// Seconds of the last update, inspection included; a lone device would spend them too.
  double update_seconds() const noexcept { return update_seconds_; }

  /// For others, before the next run(), whose waiting it becomes.
  void has_waited(double seconds) noexcept { waited_before_ += seconds; }

 private:
  bool update(std::int64_t step, std::span<const progress::RankFigures> figures,
              torch::optim::Optimizer& optimizer);
  double spread_update();
  double memory_now();
  double learn_share(progress::RankFigures& mine, const Unread& unread,
                     const device::LateNumbers& losses);
  StepResult run_late(std::int64_t step, torch::optim::Optimizer& optimizer,
                      std::optional<Unread> alone, double behind);
  StepResult run_now(std::int64_t step, torch::optim::Optimizer& optimizer, double inspect_seconds,
                     double behind);
  void wait_for_all(StepResult& result, double behind);

  parallel::Sync sync_;
  std::chrono::milliseconds timeout_;
  progress::FigureExchange exchange_;
  GradientStages stages_;
  std::vector<task::BatchStatistics> statistics_;
  Stopwatch since_memory_;
  double memory_bytes_ = 0;
  std::int64_t updated_ = 0, complete_ = 0;  // steps: the last update; all gradients are here
  double update_seconds_ = 0, waited_before_ = 0;
  std::optional<device::StreamTimer> updating_;  ///< where nobody waits for the update
  struct Late {
    EarlierStep step;
    device::StreamTimer updating;  ///< of a rank alone
    std::optional<Unread> alone;   ///< likewise
    device::LateNumbers numbers;   ///< the losses of a rank alone; the norm, if there is one
    bool with_norm = false;
    optim::SkippableUpdate* skippable = nullptr;  ///< where the device may have left it out
  };
  std::optional<torch::Device> decides_on_;
  std::deque<Late> late_;                              ///< two at most
  double communicate_seconds_ = 0, wait_seconds_ = 0;  // of all steps so far
};

}  // namespace bimetal::train
