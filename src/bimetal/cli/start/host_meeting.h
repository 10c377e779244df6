#pragma once
// The machine on which a job of several was started: it serves the store, says how others get in,
// and waits for them. The kind of job does not matter here.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/cli/start/share.h"
#include "bimetal/launch/job_board.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace CLI {
class App;
}

namespace bimetal::cli {

/// --share, --listen, --world-size, --token-file and --encrypt.
void add_host_options(CLI::App& command, HostOptions& options);

/// The world size of a job whose first machine has `here` workers. Shared jobs are encrypted.
/// Error(InvalidArgument) where `options` leave it open or name fewer.
int world_size_of(const HostOptions& options, int here);

/// Use from one thread.
class HostMeeting {
 public:
  using Say = std::function<void(const std::string&)>;

  /// `say` gets news for the user. Errors of the store's server; Unauthorized beyond loopback
  /// without a token.
  HostMeeting(const HostOptions& options, int world_size, launch::SignalWatch& signals, Say say);

  int world_size() const { return world_size_; }
  const net::Token& token() const { return token_; }
  /// The address of the store, as all machines use it.
  const net::Endpoint& address() const { return address_; }
  launch::JobStore& store() { return store_; }
  launch::JobBoard& board() { return board_; }

  /// From now on others can join the job that is called `name`.
  void offer(const launch::JobOffer& offer, int own_workers, const std::string& name);

  /// For people; `as`: the options of it.
  std::string how_to_join(std::string_view as = "") const;

  /// False if the user gave up, which others are told. Errors: Timeout, which names `option` as
  /// what says how long to wait; Aborted where a machine has left again.
  bool wait_for_workers(double patience_s, std::string_view option);

  /// Takes leave, and stays for others who have not: `to_meet`, since they need the store, or for
  /// the reason of a failure, while one is to be read. Not a second time.
  void wait_until_others_left(std::chrono::milliseconds patience, bool to_meet) noexcept;

 private:
  void require_everyone(int claimed, Deadline deadline, double patience_s, std::string_view option);

  launch::SignalWatch& signals_;
  const Say say_;
  const int world_size_;
  const net::Token token_;
  std::unique_ptr<rendezvous::StoreServer> server_;
  net::Endpoint address_;
  launch::JobStore store_;
  launch::JobBoard board_;
  std::optional<Share> share_;
};

}  // namespace bimetal::cli
