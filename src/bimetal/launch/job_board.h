#pragma once
// How the launchers of one job on several machines talk through its store. The host offers the job,
// the others claim rank numbers, and the host gives the start. A launcher that sees the job fail
// says why, so that every terminal shows the same cause. docs/running.md shows the use.

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::launch {

/// As the store that it holds, until the job fails (hurry()): a call then waits for 0.4 s at most,
/// and once two in a row have waited in vain for the store's machine all others end at once, with
/// Error(PeerLost). Together that is less than the second after which a prompt is to come back.
class JobStore final : public rendezvous::Store {
 public:
  explicit JobStore(std::unique_ptr<rendezvous::Store> store) : store_(std::move(store)) {}

  /// The job has failed: the remaining news is worth no long wait.
  void hurry() noexcept { hurried_ = true; }

  void set(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  std::string local_address() const override { return store_->local_address(); }

 private:
  template <typename Call>
  auto ask(Call call, Deadline deadline);

  std::unique_ptr<rendezvous::Store> store_;
  std::atomic<bool> hurried_ = false;
  std::atomic<int> in_vain_ = 0;  ///< calls in a row
};

struct JobOffer {
  std::string version;   ///< of the host's Bimetal; all machines run the same
  std::string request;   ///< each rank's task, the whole job in it
  int world_size = 0;    ///< ranks over all machines
  int servers_here = 0;  ///< parameter servers that the host runs
  /// For `bimetal launch`: the command that its ranks run there; `request` is then empty.
  std::vector<std::string> command = {};
};

/// A view of the store; `store` must outlive it. Calls end within seconds, and once the job has
/// failed within half of one, with the store's errors.
class JobBoard {
 public:
  explicit JobBoard(JobStore& store) : store_(store) {}

  /// Host: claims ranks 0 … workers-1, then shows the offer. Call once, first.
  void offer(const JobOffer& offer, int workers);

  /// The others: waits for the offer.
  JobOffer read_offer(Deadline deadline);

  /// Takes the next `workers` rank numbers and returns the first of them. Error(InvalidArgument)
  /// when fewer are free: it says how many are free, and what to do.
  int claim(int workers, int world_size);

  /// Which ranks each machine has claimed, in their order: once all have been.
  std::vector<HostRanks> machines(int world_size);

  /// The same for workers that come to a job which trains already, whatever its size.
  int claim_later(int workers);

  /// Takes the next parameter server's number, after those of the host. Error(InvalidArgument) when
  /// all `servers` are taken.
  int claim_server(const JobOffer& offer, int servers);

  /// Ranks claimed so far.
  int claimed();

  /// Host: all ranks are claimed; start them.
  void start();
  bool started();

  /// A launcher that gives up before the start says so; the host then ends the job.
  void withdraw(const std::string& host_name);
  std::optional<std::string> withdrawn();

  /// A rank of this machine has failed, which may or may not be the cause: the others may expect
  /// word of it. Call once. From now on nobody waits long for the store.
  void note_trouble();

  /// The first failure that a launcher saw wins; later ones are dropped.
  void fail(const Error& cause, const std::string& host_name);
  std::optional<Error> failure();

  /// The failure here follows from one elsewhere.
  void know_no_cause();

  /// Whether a machine has noted its trouble, and has told neither a cause nor that it knows none.
  bool cause_may_come();
  /// Whether one has noted its trouble at all.
  bool in_trouble();

  /// A launcher that needs the store no more says so; the host then waits for everyone_left before
  /// it takes the store away.
  void leave();
  bool everyone_left();

 private:
  void note_ranks(int first, int count);

  JobStore& store_;
};

}  // namespace bimetal::launch
