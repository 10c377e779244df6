#pragma once
// Which worker computes which samples. Steps of the global batch are cut into leases by the
// workers' measured speeds. Leases are given to others when a worker is lost, and become updates in
// a fixed order. docs/parameter_server.md. No libtorch, no I/O, no clock of its own. Not
// thread-safe.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/parallel/server/ledger/worker_speed.h"

namespace bimetal::parallel::server {

// How far a job has come: which samples its parameters have learnt from. The copy of server 0 needs
// it to take over. docs/parameter_server.md, "When a server dies".

/// Samples of one epoch, in the sampler's order.
struct SampleRun {
  std::int64_t epoch = 0;
  std::int64_t offset = 0;
  std::int64_t count = 0;

  friend bool operator==(const SampleRun&, const SampleRun&) = default;
};

struct Position {
  std::int64_t steps_done = 0;
  std::int64_t epoch = 0;
  std::int64_t offset = 0;         ///< within the epoch's order: all before it have been used
  std::vector<SampleRun> visited;  ///< async: used although some before them have not been

  friend bool operator==(const Position&, const Position&) = default;
};

using TimePoint = std::chrono::steady_clock::time_point;

enum class Consistency : std::uint8_t {
  sync,     ///< an update is a step; every lease is computed with the newest parameters
  async,    ///< an update is a lease, applied as soon as it is there
  bounded,  ///< an update is a step; leases may be `staleness` steps ahead of it
};

/// "sync", "async" or "bounded". Error(InvalidArgument) for anything else.
Consistency consistency_of(std::string_view name);

/// Whether workers get leases before the end of those that they have, so that their parameters can
/// come while gradients leave. Never in sync, where a lease needs the parameters of the one before.
enum class Prefetch : std::uint8_t {
  automatic,  ///< those that gain by it: worker_speed.h
  on,         ///< all
  off,
};

/// "auto", "on" or "off". Error(InvalidArgument) for anything else.
Prefetch prefetch_of(std::string_view name);

struct LedgerOptions {
  Consistency consistency = Consistency::sync;
  std::int64_t staleness = 0;  ///< bounded
  Prefetch prefetch = Prefetch::automatic;
  std::int64_t dataset_size = 0;
  std::int64_t global_batch = 0;
  std::int64_t epochs = 1;
  std::int64_t last_step = 0;     ///< > 0: the number of the last step
  std::int64_t pause_every = 0;   ///< > 0: pauses after each step whose number is a multiple
  bool pause_at_epochs = false;   ///< pauses at the end of each epoch
  Position start;                 ///< where a checkpoint, or another coordinator, left off
  bool pause_first = false;       ///< pauses before the first step
  std::uint32_t first_lease = 0;  ///< leases are numbered from here, below 2^31
  /// The weight of samples `offset` … `offset + count - 1` of an epoch's order; none: 1 each.
  std::function<std::int64_t(std::int64_t epoch, std::int64_t offset, std::int64_t count)> weight =
      {};
};

/// A run of samples that one worker computes.
struct SampleLease {
  std::uint64_t id = 0;  ///< the worker's number is in its upper half
  int worker = -1;
  std::int64_t step = 0;  ///< counts from 1
  std::int64_t epoch = 0;
  std::int64_t offset = 0;  ///< within the epoch's order
  std::int64_t count = 0;
  std::int64_t weight = 0;       ///< of these samples
  std::int64_t denominator = 1;  ///< their gradient weighs weight / denominator
  bool second_try = false;       ///< taken from a worker that was slow
  bool ahead = false;            ///< of the end of another lease of its worker
  TimePoint granted{};
};

/// Gradients that are to change the parameters at once, in this order.
struct Update {
  std::vector<std::uint64_t> leases;
  double part = 1;  ///< of a step: the share of its samples
  Position after;   ///< of the parameters, once it has been applied
};

/// A step of which every sample has been computed; steps end in order.
struct EndedStep {
  std::int64_t number = 0;
  std::int64_t epoch = 0;
  std::int64_t total = 0;  ///< samples
  bool ends_epoch = false;
};

/// The worker whose lease `id` is.
constexpr int worker_of(std::uint64_t id) noexcept {
  return static_cast<int>(id >> 32);
}

class Ledger {
 public:
  /// Error(InvalidArgument) for sizes below 1, a position outside the data, a negative staleness.
  explicit Ledger(const LedgerOptions& options);

  /// `speed`: its own report; if unknown, the others' mean is assumed.
  void add_worker(int worker, const WorkerSpeed& speed);
  /// Its leases are given to others.
  void remove_worker(int worker);

  /// Whether it is left out of shares: it says nothing for now, or does so again.
  void set_resting(int worker, bool resting);

  /// Work for a worker, also before the end of its present work. Nothing while there is none. In
  /// bounded also nothing for an idle worker that keeps pace with the others by waiting: after
  /// their update its gradients will be newer.
  std::optional<SampleLease> grant(int worker, TimePoint now);
  /// How many leases the worker may have at once.
  std::size_t leases_at_once(int worker) const;

  /// The lease's gradients are staged. `usable`: they are finite; otherwise they are left out of
  /// the update and their samples count as visited. `compute_seconds`: without the exchange with
  /// servers. False if the lease was revoked meanwhile.
  bool complete(std::uint64_t lease, bool usable, double compute_seconds, TimePoint now);

  /// Gives the samples to others: the worker is `slow`, or will not compute them. False if there is
  /// no such lease.
  bool revoke(std::uint64_t lease, bool slow = true);
  /// The worker has finished a lease that was revoked: how long it took is learnt.
  void finished_late(std::uint64_t lease, double compute_seconds, TimePoint now);

  /// Leases out for longer than `at_least`, and than `factor` times the time expected of them and
  /// those before them at their worker's speed, if its exchange has been timed. Never a second try:
  /// on machines whose speed varies, samples could go from worker to worker without end, and their
  /// computation would be lost each time.
  std::vector<std::uint64_t> overdue(TimePoint now, double factor,
                                     std::chrono::milliseconds at_least) const;
  const std::map<std::uint64_t, SampleLease>& out() const noexcept { return out_; }
  /// The oldest lease of each worker that has been its oldest for longer than that.
  std::vector<std::uint64_t> older_than(TimePoint now, std::chrono::milliseconds age) const;

  /// Each is returned once.
  std::vector<Update> take_updates();
  std::vector<EndedStep> take_ended_steps();

  /// No new step is opened from now on until resume().
  void request_pause() noexcept { closed_ = true; }
  /// Nothing is out and nothing will be granted before resume(): the samples visited are those
  /// before position().
  bool paused() const noexcept { return closed_ && open_.empty(); }
  /// All epochs, or the last step, are behind it: resume() has no effect any more.
  bool at_end() const noexcept;
  void resume() noexcept { closed_ = at_end(); }
  /// Gives up the steps that are open, for want of workers: position() is then where the first of
  /// them began. In async some of its samples may be in the parameters already.
  void abandon_open_steps();

  std::int64_t steps_done() const noexcept { return steps_done_; }
  std::int64_t epoch() const noexcept { return epoch_; }
  std::int64_t offset() const noexcept { return offset_; }
  /// The position in the data after the updates so far.
  Position position() const;
  /// Samples that were leased out again after a loss.
  std::int64_t samples_repeated() const noexcept { return samples_repeated_; }
  /// Samples per second of a worker in leases of its present share; 0 while that is unknown.
  double rate(int worker) const;
  /// Samples of a whole step for each worker, by today's speeds: so that all finish together, or in
  /// async, where nobody waits, in proportion to the speeds.
  std::map<int, std::int64_t> shares(std::int64_t total) const;

 private:
  struct Range {
    std::int64_t offset = 0;
    std::int64_t count = 0;
    bool second_try = false;
  };
  struct Step {
    EndedStep facts;
    std::int64_t offset = 0;                       ///< where it begins
    std::int64_t weight = 0;                       ///< of its samples
    std::vector<Range> free;                       ///< not leased out; the first goes next
    std::map<int, std::int64_t> shares;            ///< decided when the step was opened
    std::set<int> participants;                    ///< workers that have had a lease of it
    std::int64_t left = 0;                         ///< samples that are not complete
    std::map<std::int64_t, std::uint64_t> usable;  ///< by offset: complete leases
    std::vector<SampleRun> visited;                ///< async: of complete leases
  };

  bool holds_any(int worker) const;
  bool left_out(const Step& step, int worker) const;
  bool may_open() const noexcept;
  bool worth_waiting_for_all(TimePoint now) const;
  Step& open();
  std::int64_t weight(std::int64_t epoch, std::int64_t offset, std::int64_t count) const;
  std::vector<Range> unvisited(std::int64_t count) const;
  SampleLease take(Step& step, int worker, TimePoint now);
  Step* first_free(int worker, bool again, std::int64_t up_to);
  Step& step_of(const SampleLease& lease);
  void give_back(const SampleLease& lease, bool second_try);
  double turned_to(const SampleLease& lease, TimePoint now) const;
  void learn(const SampleLease& lease, double compute_seconds, TimePoint now);
  void end_steps();

  LedgerOptions options_;
  std::int64_t steps_done_;
  std::int64_t last_opened_;
  std::int64_t epoch_, offset_;
  bool closed_ = false;
  std::deque<Step> open_;                         ///< in order; the first is steps_done_ + 1
  std::map<std::uint64_t, SampleLease> out_;      ///< of each worker in the order of their grants
  std::map<std::uint64_t, SampleLease> revoked_;  ///< whose workers may still be at them
  std::map<int, WorkerSpeed> speeds_;
  std::map<int, PrefetchGain> gains_;
  std::map<int, TimePoint> free_since_;  ///< when a worker ended its last lease
  std::set<int> resting_;
  std::uint32_t leases_;
  std::int64_t samples_repeated_ = 0;
  std::vector<Update> updates_;
  std::vector<EndedStep> ended_;
};

}  // namespace bimetal::parallel::server
