#include <fmt/format.h>

#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {

TcpMesh::TcpMesh(TcpMeshParts parts, std::unique_ptr<const Peers> peers,
                 std::chrono::milliseconds tick_interval)
    : io_(std::move(parts.io)),
      work_(asio::make_work_guard(*io_)),
      peers_(std::move(peers)),
      complete_(size() <= peers_->options().complete_up_to),
      places_(index(size())),
      open_(index(size())),
      door_(std::move(parts.door)),
      listeners_(std::move(parts.listeners)),
      bytes_sent_(std::move(parts.bytes_sent)),
      tick_interval_(tick_interval),
      tick_timer_(*io_),
      close_timer_(*io_) {
  io_->restart();
  for (int peer = 0; peer < size(); ++peer) {
    Place& place = place_of(peer);
    place.connection = std::move(parts.connections[index(peer)]);
    on_host_.push_back(place.connection ? place.connection->stays_on_host()
                                        : peers_->stays_on_host(peer));
    if (!place.connection || parts.unconfirmed.contains(peer)) continue;
    place.confirmed = open_[index(peer)] = true;
    place.connection->open();
  }
  door_->admit = [this](const Hello& hello) { return admit(hello); };
  door_->on_connection = [this](asio::ip::tcp::socket socket, const AuthenticatedClient& client) {
    take_in(std::move(socket), client);
  };
  for (const int peer : parts.wanted_by) want(peer);
  spawn(*io_, tick(), [this](const Error& error) {
    log(LogLevel::error, "nobody watches this rank's connections any more: {}", error.what());
    for_each_connection([](Connection& connection) { connection.drop(); });
  });
  thread_ = std::thread([this] {
    run_handlers(*io_, [this](const Error& error) {
      for_each_connection([&](Connection& connection) { connection.give_up(error); });
    });
  });
}

TcpMesh::~TcpMesh() {
  if (!shut_gate()) return;
  asio::post(*io_, [this] {
    leaving_ = true;
    stop_ticking();
    stop_listening();
    abandon_all(Error(ErrorCode::Aborted, "the mesh was destroyed without close()"));
  });
  join();
}

void TcpMesh::check_peer(int peer) const {
  if (peer < 0 || peer >= size() || peer == rank()) {
    throw Error(ErrorCode::Internal, fmt::format("rank {} is no peer of rank {}", peer, rank()));
  }
}

/// On the mesh's thread, unless the mesh is closed.
template <typename Action>
void TcpMesh::post(Action action) {
  std::lock_guard lock(gate_);
  if (!shut_) asio::post(*io_, std::move(action));
}

/// An action on one connection may change the others' places.
template <typename Action>
void TcpMesh::for_each_connection(Action action) {
  for (Place& place : places_) {
    if (const auto connection = place.connection) action(*connection);
  }
}

void TcpMesh::start(FrameReceiver& receiver) {
  post([this, &receiver] {
    receiver_ = &receiver;
    for (int peer = 0; peer < size(); ++peer) {
      if (const auto& lost = place_of(peer).lost) receiver.on_lost(peer, *lost);
    }
    for_each_connection([&](Connection& connection) { connection.start(receiver, *this); });
  });
}

void TcpMesh::send(int peer, FrameHeader header, std::span<const std::byte> payload,
                   SendDone done) {
  check_peer(peer);
  {
    std::lock_guard lock(gate_);
    if (!shut_) {
      asio::post(*io_, [this, peer, header, payload, done = std::move(done)]() mutable {
        Place& place = place_of(peer);
        if (place.confirmed) {
          place.connection->send(header, payload, std::move(done));
        } else if (place.lost) {
          if (done) done(std::make_exception_ptr(*place.lost));
        } else {
          place.waiting.push_back({header, payload, std::move(done)});
          want(peer);
        }
      });
      return;
    }
  }
  if (io_->get_executor().running_in_this_thread() && greeting_) {
    return place_of(peer).connection->send(header, payload, std::move(done));
  }
  if (done) done(std::make_exception_ptr(Error(ErrorCode::Aborted, "the mesh is closed")));
}

void TcpMesh::open(int peer) {
  check_peer(peer);
  if (!is_open(peer)) post([this, peer] { want(peer); });
}

void TcpMesh::resume(int peer) {
  check_peer(peer);
  post([this, peer] {
    if (const auto& from = place_of(peer).connection) from->resume();
  });
}

/// The other ranks are not told: the peer may be well.
void TcpMesh::drop(int peer) {
  check_peer(peer);
  post([this, peer] {
    Place& place = place_of(peer);
    if (!place.confirmed) {
      const Error given_up(ErrorCode::PeerLost,
                           fmt::format("this side has given up rank {} ({}), with which it was not "
                                       "connected yet",
                                       peer, host_of(peer)),
                           peer);
      return lose(peer, given_up);
    }
    dropping_ = true;
    place.connection->drop();
    dropping_ = false;
  });
}

asio::awaitable<void> TcpMesh::tick() {
  std::error_code ignored;
  for (;;) {
    tick_timer_.expires_after(tick_interval_);
    co_await tick_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    // Not told by the wait's error: a cancellation does not reach a wait that has just ended.
    if (!ticking_) break;
    for_each_connection([](Connection& connection) { connection.tick(); });
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
  leaving_ = true;
  still_leaving_ = places_.size();
  close_timer_.expires_at(deadline.time());
  close_timer_.async_wait([this](const std::error_code& error) {
    if (error) return;
    abandon_all(Error(ErrorCode::Aborted, "the mesh closed before this could be sent"));
  });
  for (int peer = 0; peer < size(); ++peer) leave(peer);
}

/// Frames that wait for a connection are sent, if there is time.
void TcpMesh::leave(int peer) {
  Place& place = place_of(peer);
  if (place.connection) {
    place.connection->confirm();
    use(peer);
    place.connection->leave([this] { one_has_left(); });
  } else if (!place.waiting.empty()) {
    place.leaves = true;
  } else {
    end_call(place);
    one_has_left();  // also this rank itself
  }
}

void TcpMesh::one_has_left() {
  if (--still_leaving_ > 0) return;
  stop_ticking();
  stop_listening();
  close_timer_.cancel();
}

void TcpMesh::abandon_all(const Error& reason) {
  for_each_connection([&](Connection& connection) { connection.abandon(reason); });
  for (int peer = 0; peer < size(); ++peer) {
    if (!place_of(peer).confirmed) lose(peer, reason);
  }
}

void TcpMesh::stop_listening() {
  for (const auto& listener : listeners_) listener->stop();
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
