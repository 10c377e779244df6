#pragma once
// The decisions of server 0: which workers belong to it, which samples each computes, and when
// gradients become updates. A state machine without sockets or threads; its decisions go out
// through CoordinatorPort. docs/parameter_server.md. Not thread-safe.

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/ledger/ledger.h"
#include "bimetal/parallel/server/ledger/worker_speed.h"
#include "bimetal/parallel/server/link/message.h"

namespace bimetal::parallel::server {

/// Facts on one worker; kept when it has gone.
struct WorkerFigures {
  int number = 0;
  std::string host, device;
  bool here = true;
  bool lost = false;         ///< it did not leave in good order
  std::int64_t updates = 0;  ///< leases that went into updates
  std::int64_t samples = 0;  ///< in these
  std::int64_t dropped = 0;  ///< leases whose gradients were not finite
  double compute_seconds = 0, communicate_seconds = 0, wait_seconds = 0;
  std::uint64_t bytes_sent = 0;
  double staleness_sum = 0;
  std::int64_t staleness_max = 0;
};

// ---- what the job's main thread is told ---------------------------------------------------------

/// A worker is ready for its first lease.
struct JoinedEvent {
  int worker = 0;
  std::string name;
};
struct StepEvent {
  EndedStep step;
  double loss_sum = 0;
  std::int64_t weight = 0;             ///< of the samples that the loss is of
  std::map<int, std::int64_t> shares;  ///< of the next step
  std::vector<WorkerFigures> workers;
};
/// Nothing is out: position and steps are those of the parameters. Goes on with resume().
struct PauseEvent {
  std::int64_t steps_done = 0, epoch = 0, offset = 0;
  std::uint64_t version = 0;
  bool at_end = false;
};
/// Sums over all chunks.
struct EvaluatedEvent {
  double loss_sum = 0;
  std::vector<double> metrics = {};  ///< in the order of the task's
  std::int64_t weight = 0;           ///< of the samples
};
struct NoticeEvent {
  std::string text;
};
/// A new line in the log of a worker or of a server.
struct SaidEvent {
  int worker = 0;  ///< -1 - S: of server S
  std::string host;
  std::vector<progress::RankLine> lines;
};
/// Another server has the copy of this one's part.
struct ServerLostEvent {
  int server = 0;
};
/// This server, server 0's stand-in, is to lead the job from now on.
struct TakeOverEvent {};
struct FailedEvent {
  Error error;
};
using Event = std::variant<JoinedEvent, StepEvent, PauseEvent, EvaluatedEvent, NoticeEvent,
                           SaidEvent, ServerLostEvent, TakeOverEvent, FailedEvent>;

class CoordinatorPort {
 public:
  virtual ~CoordinatorPort() = default;
  virtual void send_lease(int worker, const Lease& lease) = 0;
  /// The next two go to every server, in the order of the calls.
  virtual void send_apply(std::uint64_t version, const Apply& update) = 0;
  virtual void send_drop(std::uint64_t lease) = 0;
  /// To the one that would take over.
  virtual void send_record(const StepEvent& step) = 0;
};

struct CoordinatorOptions {
  LedgerOptions ledger;
  std::set<int> servers = {0};         ///< their numbers
  int shards = 1;                      ///< server k keeps shard k mod shards
  std::vector<WorkerFigures> workers;  ///< of those that another coordinator knew
  bool staleness_aware = false;
  bool weight_prediction = true;  ///< workers get parameters as they are expected to be
  /// The factor of the optimizer's learning rate in a step; none: 1.
  std::function<double(std::int64_t step)> learning_rate_factor;
  int max_not_finite = 10;                         ///< that many dropped gradients end the job
  std::uint64_t version = 0;                       ///< of the parameters at the start
  std::chrono::milliseconds join_timeout{60000};   ///< longest time without any worker
  std::chrono::milliseconds silent_after{3000};    ///< a worker that says nothing for so long rests
  std::chrono::milliseconds lease_timeout{60000};  ///< a lease is taken back after that in any case
};

class Coordinator {
 public:
  using Tell = std::function<void(Event)>;
  Coordinator(const CoordinatorOptions& options, CoordinatorPort& port, Tell tell, TimePoint now);

  /// A worker has joined; its number. Call ready() once it has been told.
  int admit(const Join& join);
  void ready(int worker, TimePoint now);
  /// Its connection has ended. `why` is empty where it left in good order.
  void lost(int worker, const std::string& why, TimePoint now);
  /// Something has come from it, a heartbeat at least.
  void heard(int worker, TimePoint when);

  void done(int worker, std::uint64_t lease, const Done& done, TimePoint now);
  void staged(int server, std::uint64_t lease, bool finite, TimePoint now);

  /// A server is gone. The job goes on with the other copy of its shard, if there is one.
  void server_lost(int server, const std::string& why, TimePoint now);

  /// To be called several times per second.
  void tick(TimePoint now);

  /// Between pauses: evaluates test chunks 0 … chunks-1, each by one worker, and tells the sum.
  void evaluate(std::int64_t chunks, TimePoint now);
  void resume(TimePoint now);
  /// The job is to stop: pauses as soon as all leases have come back, or nobody is left to bring
  /// them.
  void request_pause();

  std::uint64_t version() const noexcept { return version_; }
  /// Numbers of those that live.
  const std::set<int>& servers() const noexcept { return options_.servers; }
  std::int64_t samples_repeated() const noexcept { return ledger_.samples_repeated(); }
  std::vector<WorkerFigures> figures() const;

 private:
  struct Worker {
    WorkerFigures figures;
    std::vector<std::uint64_t> leases;   ///< of the work under way, and of the next
    std::set<std::uint64_t> taken_back;  ///< leases that it does not know it has lost
    bool joined = false;
    bool silent = false;
    bool leaving = false;  ///< has gone in good order; the servers still report its last leases
    TimePoint heard{};
  };
  struct Pending {
    Lease lease;
    std::optional<Done> done;
    std::set<int> staged;  ///< servers that have it whole
    bool finite = true;
  };
  struct Evaluation {
    std::vector<std::pair<std::int64_t, std::int64_t>> free;  ///< offset, count
    std::int64_t total = 0;
    EvaluatedEvent sums;
    std::int64_t left = 0;
  };

  /// Something has come from a worker that was thought silent.
  void wake(Worker& worker);
  bool try_settle(std::uint64_t lease, TimePoint now);
  void settle(std::uint64_t lease, const Pending& pending, TimePoint now);
  void settle_evaluation(const Pending& pending);
  void advance();
  void use(const Update& update);
  void hand_out(TimePoint now);
  void hand_to(Worker& worker, TimePoint now);
  std::optional<Lease> next_for(int worker, TimePoint now);
  std::optional<Lease> next_chunks(int worker);
  double steps_ahead(const SampleLease& lease) const;
  void take_back(std::uint64_t lease, const std::string& why, TimePoint now);
  void notice(std::string text) { tell_(NoticeEvent{std::move(text)}); }
  std::string name_of(int worker) const;

  CoordinatorOptions options_;
  CoordinatorPort& port_;
  Tell tell_;
  Ledger ledger_;
  std::uint64_t version_;
  GradientAge age_;
  std::map<int, Worker> workers_;
  std::map<std::uint64_t, Pending> pending_;
  struct Result {
    Done done;
    int worker = 0;
    std::int64_t samples = 0;
  };
  std::map<std::uint64_t, Result> results_;  ///< complete leases that no update has used yet
  std::map<std::int64_t, std::pair<double, std::int64_t>> losses_;  ///< per step: sum, weight
  std::optional<Evaluation> evaluation_;
  std::uint32_t evaluations_;
  int not_finite_ = 0;
  int next_number_ = 0;
  bool told_pause_ = false;
  bool stopping_ = false;
  bool failed_ = false;
  TimePoint last_with_worker_;
};

}  // namespace bimetal::parallel::server
