#pragma once
// The directory of parameter servers and their workers: entries of a store. Through it they find
// each other, and learn that a server has died or that the job is done.
//
// How much each parameter server keeps, where the job says only how many there are: by the
// bandwidth that workers see. Every process of the job needs the weights before it can plan the
// shards.
//
// Each server answers measurements (link/questions.h) and says where. Server 0 lets the workers that are
// there by then measure, one after the other, so that they do not disturb each other; one that is
// lost at it is passed over. It writes the weights into the directory, where the others, and later
// ones, find them. Servers whose addresses are all one host's have equal weights at once.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/progress/observer.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::parallel::server {

struct DirectoryOptions {
  net::Endpoint store;
  net::Token token = {};
  Deadline deadline = Deadline::at({});  ///< for processes to be there
  bool serves_store = false;             ///< this process keeps the entries
  bool copies = false;                   ///< each server has one: see below
  std::function<bool()> stop = {};       ///< whether to give up a wait, with Aborted
};

/// The servers of a job that are there, and those that have died.
struct FoundServers {
  std::vector<net::Endpoint> servers;  ///< one each
  std::set<int> gone;                  ///< of these: their copies keep their parts
};

/// A process's view of those entries. Thread-safe.
///
/// With copies of the servers on several machines a job goes on when the one that serves the store
/// is lost. From then on news reaches nobody, and nothing new is known: only find(), find_data(),
/// read() and count() fail.
class ServerDirectory {
 public:
  /// Errors of connect_store and, where it serves the store, of StoreServer.
  explicit ServerDirectory(DirectoryOptions options);

  void publish(int server, const net::Endpoint& endpoint);

  /// Waits until the server listens; nothing if it has died. It may run elsewhere, and come later.
  /// Error(Timeout) after the deadline.
  std::optional<net::Endpoint> find(int server);
  /// All of them, `shards` and their copies. Error(PeerLost) where one has died that has no copy.
  FoundServers find_all(int servers, int shards);

  /// The address from which the leading server sends its data set; nothing: it has none.
  void publish_data(const std::optional<net::Endpoint>& endpoint);
  /// The same, waited for as by find(). Error(PeerLost) if server 0 has died before.
  std::optional<net::Endpoint> find_data();

  /// Anything else that is served, where its clients look for it in the store.
  void publish_at(std::string_view key, const net::Endpoint& endpoint);

  /// A server has died.
  void withdraw(int server);
  bool withdrawn(int server);

  /// The job has done all that it had to do.
  void end();
  bool ended();
  /// ended(), or false where nobody can be asked: what went wrong before tells more then.
  bool known_to_have_ended();
  /// All have been told so.
  void finish();

  /// Further notes between servers and workers, under names of their own.
  void write(std::string_view name, std::string_view value);
  std::optional<std::string> read(std::string_view name);
  /// Adds to a counter that starts at 0; the sum.
  std::int64_t count(std::string_view name, std::int64_t more);

  Deadline deadline() const noexcept { return options_.deadline; }
  bool stopped() const { return options_.stop && options_.stop(); }

 private:
  /// The value under `key`; nothing if that server has died before.
  std::optional<std::string> wait_for(int server, const std::string& key);

  /// Does nothing once the store is gone, which it finds out by asking.
  void unless_gone(const std::function<void()>& ask);

  const DirectoryOptions options_;
  std::atomic<bool> gone_ = false;  ///< the store
  std::optional<rendezvous::StoreServer> store_server_;
  std::unique_ptr<rendezvous::Store> store_;
};

// For the launchers of such a job, which use its store for other things, too.

/// Whether the servers have said that the job is done, and that all have been told so. Errors: the
/// store's.
bool has_ended(rendezvous::Store& store);
bool has_finished(rendezvous::Store& store);

/// Tells all that look for that server that it is lost. `how`: the cause. Does nothing if the store
/// is gone.
void note_lost_server(rendezvous::Store& store, int server, const Error& how);

struct Weighing {
  ServerDirectory& directory;
  int servers = 1;
  Credentials credentials;
};

/// A server's part, which listens at `listen_host` for as long. Server 0 tells `observer` what came
/// of it. Errors: PeerLost naming a server that has died; Timeout after the directory's deadline;
/// Aborted.
std::vector<double> weigh_as_server(const Weighing& weighing, int server,
                                    const std::string& listen_host, progress::Observer& observer);

/// A worker's part: the same weights.
std::vector<double> weigh_as_worker(const Weighing& weighing);

}  // namespace bimetal::parallel::server
