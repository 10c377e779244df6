#pragma once
// The events that training reports to an observer: the library itself prints nothing.

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/progress/members_change.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/progress/progress.h"

namespace bimetal::progress {

struct RankLine;  // rank_log.h
struct Sample;    // metrics.h

/// The place where a worker computes.
struct WorkerPlace {
  std::string host;        ///< its machine
  std::string device;      ///< the device that it computes on
  std::string stage = {};  ///< "stage 1 of 3, replica 0", where the model is cut
  bool gone = false;       ///< it was lost or has left, and the others go on
};

/// A rank's activity for a while in one step; seconds since the step began, by rank 0's clock.
struct StepSpan {
  int phase = 0;                  ///< of StepTimes::phases
  int micro_batch = -1;           ///< of a pipeline; -1: of no single one
  double begin_s = 0, end_s = 0;  ///< since the step began
};

/// The time of some steps by phase: for each rank the seconds in each phase (docs/profile.md).
struct StepTimes {
  std::int64_t first_step = 0, last_step = 0;     ///< that it is of
  std::vector<std::string> phases = {};           ///< "data", "forward"…
  std::vector<std::vector<double>> seconds = {};  ///< by rank, one for each phase
  std::vector<std::vector<StepSpan>> spans = {};  ///< by rank: the last step
  std::vector<double> latency_s = {};  ///< by rank: that of a short message from rank 0, one
                                       ///< way
};

/// How far the ranks are with data that must be read, fetched or sent before training.
struct DataProgress {
  std::string what;         ///< "sending 29.5 MiB of data to 1 machine"
  double part = 0;          ///< done, 0…1; NaN where it is not known how much there is
  double seconds_left = 0;  ///< NaN where it is not known
};

/// A rank is lost, and the others save its state, of which they keep a copy.
struct Rescue {
  /// How far it has come.
  enum class State { Saving, Saved, Failed };
  State state = State::Saving;  ///< of now
  int lost = -1;                ///< Saved
  std::int64_t step = 0;        ///< Saved
  std::string path = {};        ///< Saved: that of the checkpoint
  std::string cause = {};       ///< Failed
};

/// Is told a run's events, on the thread that trains. It must not throw. The functions here do
/// nothing.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_phase(const std::string& /*what*/) {}  ///< "loading data", "waiting for 1 rank"…
  virtual void on_data(const DataProgress&) {}           ///< while data are read, fetched or sent
  virtual void on_workers(const std::vector<WorkerPlace>&) {}  ///< by rank; before the first step
  virtual void on_step(const Progress&) {}                     ///< after each step
  /// After each evaluation.
  virtual void on_evaluated(std::int64_t /*epoch*/, const Evaluation&) {}
  /// After each save.
  virtual void on_checkpoint(const std::string& /*path*/, std::int64_t /*step*/) {}
  /// Saved: on one rank of those who are left; else on each.
  virtual void on_rescue(const Rescue&) {}
  /// Whether this rank leads, as rank 0 does: told when members have met, in their first epoch and
  /// each later one.
  virtual void on_leading(bool /*leads*/) {}
  virtual void on_profile(const StepTimes&) {}            ///< of profiled steps
  virtual void on_notice(const std::string& /*text*/) {}  ///< shares capped, worker of no use…
  /// The model's output for a sample that was asked for: on rank 0.
  virtual void on_sample(const Sample&) {}
  /// New lines of a worker's log, also this rank's own: on every rank.
  virtual void on_rank_lines(int /*worker*/, const std::string& /*host*/,
                             const std::vector<RankLine>& /*lines*/) {}
  /// Other workers go on; by itself a notice.
  virtual void on_members(const MembersChange& change) {
    for (const auto& line : lines_of(change)) on_notice(line);
  }
};

// Several who watch the same run.

/// Tells each of them, in their order, whatever it is told. They must outlive it.
class Observers : public Observer {
 public:
  /// They must outlive it.
  explicit Observers(std::vector<Observer*> all) : all_(std::move(all)) {}

  /// From now on these instead.
  void tell(std::vector<Observer*> all) { all_ = std::move(all); }

  void on_phase(const std::string& what) override {
    for (auto* one : all_) one->on_phase(what);
  }
  /// Tells all of them, as the next ones do.
  void on_data(const DataProgress& progress) override {
    for (auto* one : all_) one->on_data(progress);
  }
  void on_workers(const std::vector<WorkerPlace>& places) override {
    for (auto* one : all_) one->on_workers(places);
  }
  /// As Observer has it.
  void on_step(const Progress& progress) override {
    for (auto* one : all_) one->on_step(progress);
  }
  /// As Observer has it.
  void on_evaluated(std::int64_t epoch, const Evaluation& evaluation) override {
    for (auto* one : all_) one->on_evaluated(epoch, evaluation);
  }
  /// As Observer has it.
  void on_checkpoint(const std::string& path, std::int64_t step) override {
    for (auto* one : all_) one->on_checkpoint(path, step);
  }
  void on_rescue(const Rescue& rescue) override {
    for (auto* one : all_) one->on_rescue(rescue);
  }
  void on_leading(bool leads) override {
    for (auto* one : all_) one->on_leading(leads);
  }
  /// As Observer has it.
  void on_profile(const StepTimes& times) override {
    for (auto* one : all_) one->on_profile(times);
  }
  void on_notice(const std::string& text) override {
    for (auto* one : all_) one->on_notice(text);
  }
  /// As Observer has it.
  void on_sample(const Sample& sample) override {
    for (auto* one : all_) one->on_sample(sample);
  }
  /// As Observer has it.
  void on_rank_lines(int worker, const std::string& host,
                     const std::vector<RankLine>& lines) override {
    for (auto* one : all_) one->on_rank_lines(worker, host, lines);
  }
  /// As Observer has it.
  void on_members(const MembersChange& change) override {
    for (auto* one : all_) one->on_members(change);
  }

 private:
  std::vector<Observer*> all_;
};

// The progress of a long piece of work on files, for a thread that watches it.

/// Thread-safe.
class Meter {
 public:
  /// So many bytes are to be done, beyond those announced before.
  void expect(std::uint64_t bytes) { expected_ += bytes; }

  /// So many bytes more are done. Error(Aborted) once stop() was called: work ends here.
  void advance(std::uint64_t bytes) {
    done_ += bytes;
    require_going();
  }
  /// Error(Aborted) after stop().
  void require_going() const {
    if (stopped_) throw Error(ErrorCode::Aborted, "the work on the data was called off");
  }

  void stop() { stopped_ = true; }  ///< from any thread

  std::uint64_t done() const { return done_; }          ///< bytes so far
  std::uint64_t expected() const { return expected_; }  ///< bytes in all

 private:
  std::atomic<std::uint64_t> done_{0}, expected_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace bimetal::progress
