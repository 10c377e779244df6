#pragma once
// Where the servers and workers of a job with parallel.mode = "server" find each other, and learn
// that a server has died: entries of a store, of the launcher or of server 0.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/job/job_config.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::cli {

/// A process's view of those entries.
///
/// With copies of the servers on several machines a job goes on when the one that serves the store
/// is lost. From then on what is told reaches nobody, and nothing new is known: only find(),
/// find_data(), read() and count() fail.
class ServerDirectory {
 public:
  /// `server`: this process's number among the servers; -1: it is a worker. Errors of
  /// connect_store; Unsupported where the job's launcher keeps no directory.
  ServerDirectory(const launch::RankEnvironment& env, const job::JobConfig& job, int server);

  void publish(int server, const net::Endpoint& endpoint);

  /// Waits until the server listens; nothing if it has died. It may run elsewhere, and come later.
  /// `stop`: whether to give up, with Aborted. Error(Timeout) after cluster.join_timeout_s.
  std::optional<net::Endpoint> find(int server, const std::function<bool()>& stop);

  /// Where the leading server sends its data set; nothing: it has none.
  void publish_data(const std::optional<net::Endpoint>& endpoint);
  /// The same, waited for as by find(). Error(PeerLost) if server 0 has died before.
  std::optional<net::Endpoint> find_data(const std::function<bool()>& stop);

  void publish_predictions(const net::Endpoint& endpoint);

  /// A server has died.
  void withdraw(int server);
  bool withdrawn(int server);

  /// The job has done all that it had to do.
  void end();
  bool ended();
  /// All have been told so.
  void finish();

  /// What else servers and workers tell each other, under names of their own.
  void write(std::string_view name, std::string_view value);
  std::optional<std::string> read(std::string_view name);
  /// Adds to a counter that starts at 0; the sum.
  std::int64_t count(std::string_view name, std::int64_t more);

  /// cluster.join_timeout_s after this process began to look.
  Deadline deadline() const noexcept { return deadline_; }

 private:
  /// What is written under `key`; nothing if that server has died before.
  std::optional<std::string> wait_for(int server, const std::string& key,
                                      const std::function<bool()>& stop);

  /// Does nothing once the store is gone, which it finds out by asking.
  void unless_gone(const std::function<void()>& ask);

  Deadline deadline_;
  bool copies_ = false;             ///< each server has one
  std::atomic<bool> gone_ = false;  ///< the store
  std::optional<rendezvous::StoreServer> store_server_;
  std::unique_ptr<rendezvous::Store> store_;
};

/// Whether the servers whose directory is in that store have said that the job is done. Errors: the
/// store's.
bool has_ended(rendezvous::Store& store);

/// Tells whoever looks for that server, in the servers' store, that it is lost. `how`: what became
/// of it. Does nothing where the store is gone.
void note_lost_server(rendezvous::Store& store, int server, const Error& how);

/// Whether all have been told that the job is done. Errors: the store's.
bool has_finished(rendezvous::Store& store);

}  // namespace bimetal::cli
