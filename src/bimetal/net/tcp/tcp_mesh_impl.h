#pragma once
// The mesh once all its connections are open. Made by TcpMeshBuilder.

#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/tcp/connection.h"

namespace bimetal::net {

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

class TcpMesh final : public Mesh {
 public:
  /// `connections` and `hosts` are indexed by rank; this rank has no connection. The mesh's thread
  /// starts here, so that frames can be sent and heartbeats flow before start().
  TcpMesh(int rank, std::unique_ptr<asio::io_context> io,
          std::vector<std::shared_ptr<Connection>> connections, std::vector<std::string> hosts,
          std::unique_ptr<std::atomic<std::uint64_t>> bytes_sent,
          std::chrono::milliseconds tick_interval);
  ~TcpMesh() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(connections_.size()); }
  void start(FrameReceiver& receiver) override;
  void send(int peer, FrameHeader header, std::span<const std::byte> payload,
            SendDone done) override;
  void resume(int peer) override;
  void drop(int peer) override;
  void close(Deadline deadline) override;
  std::uint64_t bytes_sent() const noexcept override { return *bytes_sent_; }
  bool stays_on_host(int peer) const noexcept override;
  std::string host_of(int peer) const override { return hosts_.at(static_cast<std::size_t>(peer)); }

 private:
  Connection& connection(int peer) const;
  asio::awaitable<void> tick();
  void stop_ticking();
  void leave_all(Deadline deadline);
  bool shut_gate();
  void join();

  const int rank_;
  std::unique_ptr<asio::io_context> io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::vector<std::string> hosts_;
  std::unique_ptr<std::atomic<std::uint64_t>> bytes_sent_;
  const std::chrono::milliseconds tick_interval_;
  asio::steady_timer tick_timer_;
  asio::steady_timer close_timer_;
  bool ticking_ = true;  ///< on the mesh's thread, as the next one
  std::size_t still_leaving_ = 0;

  std::mutex close_mutex_;  ///< lets one close() at a time through
  std::mutex gate_;         ///< guards shut_: what passes before it is shut reaches the thread
  bool shut_ = false;
  std::thread thread_;
};

}  // namespace bimetal::net
