#pragma once
// What server 0 writes down about a run, and the report made of it.

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "bimetal/base/stopwatch.h"
#include "bimetal/parallel/server/coordinator.h"
#include "bimetal/train/history.h"
#include "bimetal/train/job.h"
#include "bimetal/train/observer.h"
#include "bimetal/train/report.h"

namespace bimetal::train {

/// By number; `workers` in the order of their numbers.
std::vector<WorkerPlace> places_of(const std::vector<parallel::server::WorkerFigures>& workers);

/// Use from one thread.
class ServedJournal {
 public:
  ServedJournal(const Job& job, std::int64_t planned_steps)
      : job_(job), planned_steps_(planned_steps) {}

  /// Training begins, or goes on: what went before does not count.
  void start_clock() {
    since_last_ = Stopwatch();
    running_ = true;
  }
  /// Time passes without training.
  void stop_clock();

  Progress add(const parallel::server::StepEvent& event);
  /// Of the parameters after step number `step`.
  void add_evaluation(std::int64_t step, double accuracy) {
    evaluations_.push_back({step, elapsed_, accuracy});
  }

  Report report(const std::vector<parallel::server::WorkerFigures>& workers,
                std::int64_t samples_repeated, std::int64_t steps, std::uint64_t updates,
                std::uint64_t server_bytes) const;

 private:
  void pass_time();
  double recent_rate() const;

  const Job& job_;
  std::int64_t planned_steps_;
  bool running_ = false;
  Stopwatch since_last_;
  double elapsed_ = 0;
  std::deque<std::pair<double, std::int64_t>> recent_;  ///< elapsed seconds, samples of that step
  History history_;
  std::int64_t epoch_ = -1;
  double epoch_loss_ = 0;
  std::int64_t epoch_samples_ = 0;
  std::vector<EvaluationPoint> evaluations_;
};

}  // namespace bimetal::train
