#pragma once
// The mesh once its first connections are open. Made by TcpMeshBuilder.
//
// The ranks of a mesh: who they are, how one connects with another, and how they tell each other
// that a third is lost. The set-up and the mesh share it.

#include <asio/cancellation_signal.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/tcp/connection.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/listener.h"
#include "bimetal/net/tcp/tcp_mesh.h"

namespace bimetal::net {

class Peers {
 public:
  /// Error(InvalidArgument) for a rank that is not within the world.
  Peers(int rank, int size, TcpMeshOptions options);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const TcpMeshOptions& options() const noexcept { return options_; }
  bool encrypted() const noexcept { return options_.encryption == Encryption::on; }

  /// Where they listen and what messages call their machines, both by rank: see
  /// TcpMeshBuilder::connect.
  void set_addresses(std::vector<std::vector<Endpoint>> addresses, std::vector<std::string> hosts);
  const std::vector<Endpoint>& addresses_of(int peer) const { return addresses_.at(index(peer)); }
  const std::string& host_of(int peer) const { return hosts_.at(index(peer)); }

  /// Whether this rank connects with `peer` at the start.
  bool connects_first(int peer) const noexcept;

  /// As far as their addresses tell.
  bool stays_on_host(int peer) const;

  /// "rank 1 (mac.local, 10.0.0.2:4711)", "rank 1 (10.0.0.2:4711)".
  std::string name_of(int peer, const std::string& address) const;

  /// A call of this rank to `peer`.
  DialRequest call_to(int peer, Deadline deadline) const;

  /// The reason for which a client that has proved the token is refused at any time: it is of
  /// another job, is no rank of this world, or wants another rank.
  std::optional<Refusal> refusal(const Hello& hello) const;

  /// The connection that has come of a call, or of a client's. `bytes_sent` outlives it.
  std::shared_ptr<Connection> made_with(int peer, DialedConnection dialed,
                                        std::atomic<std::uint64_t>& bytes_sent) const;
  std::shared_ptr<Connection> made_by(const AuthenticatedClient& client,
                                      asio::ip::tcp::socket socket,
                                      std::atomic<std::uint64_t>& bytes_sent) const;

 private:
  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  std::shared_ptr<Connection> make(int peer, asio::ip::tcp::socket socket,
                                   ConnectionOptions connection,
                                   std::atomic<std::uint64_t>& bytes_sent) const;

  const int rank_;
  const int size_;
  const TcpMeshOptions options_;
  const JobDigest job_;
  std::vector<std::string> hosts_;
  std::vector<std::vector<Endpoint>> addresses_;
};

/// A listener's treatment of clients: in the set-up, and then in the mesh.
struct Door {
  Admit admit;
  std::function<void(asio::ip::tcp::socket, const AuthenticatedClient&)> on_connection;
};

/// Payload of a Loss frame: that its sender has lost the rank `loss.rank()`.
std::vector<std::byte> encode_loss(const Error& loss);

/// Throws Error(CorruptData), also for what names no rank of `size`.
Error decode_loss(std::span<const std::byte> payload, int size);

// Closes a socket when its time is up, so that everything that waits on it ends. For coroutines on
// an io_context that one thread runs.

class Watchdog {
 public:
  Watchdog(asio::ip::tcp::socket& socket, Deadline deadline) : timer_(socket.get_executor()) {
    timer_.expires_at(deadline.time());
    // The handler may already be queued when this object ends: the shared state, not the
    // cancellation, decides whether the socket may still be touched.
    timer_.async_wait([&socket, state = state_](const std::error_code& error) {
      if (error || *state != State::watching) return;
      *state = State::barked;
      std::error_code ignored;
      socket.close(ignored);
    });
  }
  ~Watchdog() {
    if (*state_ == State::watching) *state_ = State::gone;
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Whether the time was up and the socket has been closed.
  bool barked() const noexcept { return *state_ == State::barked; }

 private:
  enum class State { watching, barked, gone };

  asio::steady_timer timer_;
  std::shared_ptr<State> state_ = std::make_shared<State>(State::watching);
};

/// The parts that the set-up hands to the mesh.
struct TcpMeshParts {
  // First, so that it goes last: everything lives on it.
  std::unique_ptr<asio::io_context> io;
  std::vector<std::shared_ptr<Connection>> connections;  ///< by rank; none for this one and
                                                         ///< some others
  std::set<int> unconfirmed{};  ///< of these: Connection::confirm is to come
  std::set<int> wanted_by{};    ///< lower ranks that have asked for a call
  std::shared_ptr<Door> door;
  std::vector<std::unique_ptr<Listener>> listeners;  ///< closed where all are connected
  std::unique_ptr<std::atomic<std::uint64_t>> bytes_sent;
};

// In each pair the higher rank calls the lower one, as in the set-up. A lower rank that wants a
// connection calls, too, but only as a signal: its call is closed, and the higher rank calls back.

class TcpMesh final : public Mesh, private ConnectionOwner {
 public:
  /// The mesh's thread starts here, so that frames can be sent and heartbeats flow before start().
  TcpMesh(TcpMeshParts parts, std::unique_ptr<const Peers> peers,
          std::chrono::milliseconds tick_interval);
  ~TcpMesh() override;

  int rank() const noexcept override { return peers_->rank(); }
  int size() const noexcept override { return peers_->size(); }
  void start(FrameReceiver& receiver) override;
  void send(int peer, FrameHeader header, std::span<const std::byte> payload,
            SendDone done) override;
  void resume(int peer) override;
  void drop(int peer) override;
  void close(Deadline deadline) override;
  std::uint64_t bytes_sent() const noexcept override { return *bytes_sent_; }
  bool stays_on_host(int peer) const noexcept override { return on_host_[index(peer)]; }
  bool complete() const noexcept override { return complete_; }
  bool is_open(int peer) const noexcept override { return open_[index(peer)]; }
  void open(int peer) override;
  std::string host_of(int peer) const override { return peers_->host_of(peer); }

 private:
  struct Waiting {
    FrameHeader header;
    std::span<const std::byte> payload;
    SendDone done;
  };

  /// One peer, on the mesh's thread.
  struct Place {
    std::shared_ptr<Connection> connection;
    bool confirmed = false;       ///< the connection is, or was, in use
    bool calling = false;         ///< a call, or a bell and the call that follows, is on its
                                  ///< way
    std::optional<Error> lost{};  ///< without having been connected
    std::optional<Error> told{};  ///< another rank has lost it
    std::deque<Waiting> waiting{};
    bool leaves = false;  ///< close() waits for it, although it is not connected
    asio::cancellation_signal end_call{};
  };

  static std::size_t index(int peer) { return static_cast<std::size_t>(peer); }
  Place& place_of(int peer) { return places_[index(peer)]; }
  void check_peer(int peer) const;
  template <typename Action>
  void post(Action action);
  template <typename Action>
  void for_each_connection(Action action);
  asio::awaitable<void> tick();
  void stop_ticking();

  // Connecting later: tcp_mesh_calls.cpp.
  std::optional<Refusal> admit(const Hello& hello);
  void take_in(asio::ip::tcp::socket socket, const AuthenticatedClient& client);
  void want(int peer);
  asio::awaitable<void> call(int peer);
  void end_call(Place& place);
  void use(int peer);
  void lose(int peer, const Error& error);
  Error unreachable(int peer, const Error& last_try) const;
  void on_confirmed(int peer) override { use(peer); }
  void on_connection_lost(int peer, const Error& error, bool confirmed) override;
  void on_loss_told(int peer, std::span<const std::byte> payload) override;
  void tell_loss(int peer, const Error& loss);

  void leave_all(Deadline deadline);
  void leave(int peer);
  void one_has_left();
  void abandon_all(const Error& reason);
  void stop_listening();
  bool shut_gate();
  void join();

  std::unique_ptr<asio::io_context> io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  const std::unique_ptr<const Peers> peers_;
  const bool complete_;
  std::vector<Place> places_;
  std::vector<std::atomic<bool>> open_;
  std::vector<bool> on_host_;
  const std::shared_ptr<Door> door_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unique_ptr<std::atomic<std::uint64_t>> bytes_sent_;
  FrameReceiver* receiver_ = nullptr;
  const std::chrono::milliseconds tick_interval_;
  asio::steady_timer tick_timer_;
  asio::steady_timer close_timer_;
  bool ticking_ = true;   ///< on the mesh's thread, as the next ones
  bool leaving_ = false;  ///< leave_all() has begun, or all is to end
  bool dropping_ = false;
  bool greeting_ = false;  ///< frames that the receiver sends now go out although this side
                           ///< leaves
  std::size_t still_leaving_ = 0;

  std::mutex close_mutex_;  ///< lets one close() at a time through
  std::mutex gate_;         ///< guards shut_: what passes before it is shut reaches the thread
  bool shut_ = false;
  std::thread thread_;
};

}  // namespace bimetal::net
