#pragma once
// Turns what training tells into a status that other threads may read at any time.

#include <array>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/monitor/status.h"
#include "bimetal/progress/observer.h"

namespace bimetal::monitor {

/// The observer's calls come from one thread and cost a copy of some numbers; status() may be
/// called from any other.
class Recorder final : public progress::Observer {
 public:
  Recorder();

  void on_phase(const std::string& what) override;
  void on_data(const progress::DataProgress& progress) override;
  void on_workers(const std::vector<progress::WorkerPlace>& places) override;
  void on_step(const progress::Progress& progress) override;
  void on_evaluated(std::int64_t epoch, const progress::Evaluation& evaluation) override;
  void on_notice(const std::string& text) override;
  void on_members(const progress::MembersChange& change) override;

  Status status() const;

 private:
  /// The work done by a moment of training.
  struct Mark {
    double elapsed_s = 0;
    std::vector<progress::WorkerTotals> workers;
  };

  void set_phase(const std::string& what);
  void remember(const progress::Progress& progress);
  WorkerStatus worker(std::size_t rank) const;

  mutable std::mutex mutex_;
  Status status_;
  std::vector<progress::WorkerPlace> places_;
  progress::Progress progress_;
  Stopwatch since_step_;
  std::deque<Mark> marks_;  ///< from the last seconds, for rates
};

}  // namespace bimetal::monitor
