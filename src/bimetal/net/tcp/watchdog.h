#pragma once
// Closes a socket when its time is up, so that everything that waits on it ends. For coroutines on
// an io_context that one thread runs.

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <memory>

#include "bimetal/base/deadline.h"

namespace bimetal::net {

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

}  // namespace bimetal::net
