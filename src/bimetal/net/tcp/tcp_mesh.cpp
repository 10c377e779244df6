#include <fmt/format.h>

#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/net/tcp/run_handlers.h"
#include "bimetal/net/tcp/spawn.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {

TcpMesh::TcpMesh(int rank, std::unique_ptr<asio::io_context> io,
                 std::vector<std::shared_ptr<Connection>> connections,
                 std::vector<std::string> hosts,
                 std::unique_ptr<std::atomic<std::uint64_t>> bytes_sent,
                 std::chrono::milliseconds tick_interval)
    : rank_(rank),
      io_(std::move(io)),
      work_(asio::make_work_guard(*io_)),
      connections_(std::move(connections)),
      hosts_(std::move(hosts)),
      bytes_sent_(std::move(bytes_sent)),
      tick_interval_(tick_interval),
      tick_timer_(*io_),
      close_timer_(*io_) {
  io_->restart();
  for (const auto& connection : connections_) {
    if (connection) connection->open();
  }
  spawn(*io_, tick(), [this](const Error& error) {
    log(LogLevel::error, "nobody watches this rank's connections any more: {}", error.what());
    for (const auto& connection : connections_) {
      if (connection) connection->drop();
    }
  });
  thread_ = std::thread([this] {
    run_handlers(*io_, [this](const Error& error) {
      for (const auto& connection : connections_) {
        if (connection) connection->give_up(error);
      }
    });
  });
}

TcpMesh::~TcpMesh() {
  if (!shut_gate()) return;
  asio::post(*io_, [this] {
    stop_ticking();
    const Error reason(ErrorCode::Aborted, "the mesh was destroyed without close()");
    for (const auto& connection : connections_) {
      if (connection) connection->abandon(reason);
    }
  });
  join();
}

Connection& TcpMesh::connection(int peer) const {
  if (peer < 0 || peer >= size() || peer == rank_) {
    throw Error(ErrorCode::Internal, fmt::format("rank {} is no peer of rank {}", peer, rank_));
  }
  return *connections_[static_cast<std::size_t>(peer)];
}

void TcpMesh::start(FrameReceiver& receiver) {
  std::lock_guard lock(gate_);
  if (shut_) return;
  asio::post(*io_, [this, &receiver] {
    for (const auto& connection : connections_) {
      if (connection) connection->start(receiver);
    }
  });
}

void TcpMesh::send(int peer, FrameHeader header, std::span<const std::byte> payload,
                   SendDone done) {
  Connection& to = connection(peer);
  {
    std::lock_guard lock(gate_);
    if (!shut_) {
      asio::post(*io_, [&to, header, payload, done = std::move(done)]() mutable {
        to.send(header, payload, std::move(done));
      });
      return;
    }
  }
  if (done) done(std::make_exception_ptr(Error(ErrorCode::Aborted, "the mesh is closed")));
}

bool TcpMesh::stays_on_host(int peer) const noexcept {
  const auto& to = connections_[static_cast<std::size_t>(peer)];
  return !to || to->stays_on_host();
}

void TcpMesh::resume(int peer) {
  Connection& from = connection(peer);
  std::lock_guard lock(gate_);
  if (!shut_) asio::post(*io_, [&from] { from.resume(); });
}

void TcpMesh::drop(int peer) {
  Connection& lost = connection(peer);
  std::lock_guard lock(gate_);
  if (!shut_) asio::post(*io_, [&lost] { lost.drop(); });
}

asio::awaitable<void> TcpMesh::tick() {
  std::error_code ignored;
  for (;;) {
    tick_timer_.expires_after(tick_interval_);
    co_await tick_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    // Not told by the wait's error: a cancellation does not reach a wait that has just ended.
    if (!ticking_) break;
    for (const auto& connection : connections_) {
      if (connection) connection->tick();
    }
  }
}

void TcpMesh::stop_ticking() {
  ticking_ = false;
  tick_timer_.cancel();
}

void TcpMesh::close(Deadline deadline) {
  std::lock_guard one_at_a_time(close_mutex_);
  if (!shut_gate()) return;
  asio::post(*io_, [this, deadline] { leave_all(deadline); });
  join();
}

void TcpMesh::leave_all(Deadline deadline) {
  still_leaving_ = connections_.size();
  const auto finished = [this] {
    if (--still_leaving_ > 0) return;
    stop_ticking();
    close_timer_.cancel();
  };
  close_timer_.expires_at(deadline.time());
  close_timer_.async_wait([this](const std::error_code& error) {
    if (error) return;
    const Error reason(ErrorCode::Aborted, "the mesh closed before this could be sent");
    for (const auto& connection : connections_) {
      if (connection) connection->abandon(reason);
    }
  });
  for (const auto& connection : connections_) {
    if (connection) {
      connection->leave(finished);
    } else {
      finished();  // this rank itself
    }
  }
}

/// False if it was shut before.
bool TcpMesh::shut_gate() {
  std::lock_guard lock(gate_);
  return !std::exchange(shut_, true);
}

/// The thread ends by itself once every connection and timer has.
void TcpMesh::join() {
  work_.reset();
  thread_.join();
}

}  // namespace bimetal::net
