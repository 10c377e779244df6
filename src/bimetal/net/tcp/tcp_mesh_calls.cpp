// Connections of the mesh that open after the set-up, and losses that other ranks tell of.
#include <fmt/format.h>

#include <algorithm>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/net/silence.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {
namespace {

// How long a rank that another one has lost may take to show that it is there.
constexpr std::chrono::milliseconds kToShowItself{1000};

}  // namespace

std::optional<Refusal> TcpMesh::admit(const Hello& hello) {
  if (const auto refusal = peers_->refusal(hello)) return refusal;
  if (hello.encrypted != peers_->encrypted()) return Refusal::Encryption;
  const Place& place = place_of(hello.from_rank);
  const bool due = hello.from_rank < rank() || (!place.confirmed && !place.lost);
  return due ? std::nullopt : std::optional(Refusal::Rank);
}

/// A newer connection of a peer that has not used the older one takes its place.
void TcpMesh::take_in(asio::ip::tcp::socket socket, const AuthenticatedClient& client) {
  const int peer = client.hello.from_rank;
  Place& place = place_of(peer);
  if (peer < rank()) return want(peer);  // a bell
  if (place.confirmed || place.lost) return;
  if (place.connection) {
    place.connection->abandon(Error(ErrorCode::Aborted, "its maker has given it up"));
  }
  place.connection = peers_->made_by(client, std::move(socket), *bytes_sent_);
  place.connection->expect_confirmation();
  if (leaving_) {
    if (!std::exchange(place.leaves, false)) ++still_leaving_;
    return leave(peer);
  }
  if (receiver_) place.connection->start(*receiver_, *this);
}

void TcpMesh::want(int peer) {
  Place& place = place_of(peer);
  if (place.connection || place.lost || place.calling || leaving_) return;
  place.calling = true;
  asio::co_spawn(*io_, call(peer),
                 asio::bind_cancellation_slot(place.end_call.slot(),
                                              [this, peer](const std::exception_ptr& failure) {
                                                if (!failure || !place_of(peer).calling) return;
                                                const Error error = to_error(failure);
                                                lose(peer, Error(error.code(), error.what(), peer));
                                              }));
}

/// Calls until it is answered, or nobody is there. A peer that is stopped is: its system answers.
asio::awaitable<void> TcpMesh::call(int peer) {
  Place& place = place_of(peer);
  const auto patience =
      peer_timeout_for(peers_->options().peer_timeout, peers_->stays_on_host(peer));
  while (place.calling) {
    bool answered = false;
    const auto time = place.told ? std::min(patience, kToShowItself) : patience;
    auto request = peers_->call_to(peer, Deadline::after(time));
    request.on_answer = [&answered] { answered = true; };
    if (place.told) {
      // No second try: two have seen that nobody is there.
      request.on_trouble = [&answered](const std::string& trouble) {
        if (!answered) throw Error(ErrorCode::Timeout, trouble);
      };
    }
    std::optional<DialedConnection> dialed;
    try {
      dialed.emplace(co_await dial(std::move(request)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Timeout) throw;
      if (!answered) co_return lose(peer, unreachable(peer, error));
      continue;
    }
    if (!place.calling) co_return;
    if (peer < rank()) {
      place.connection = peers_->made_with(peer, std::move(*dialed), *bytes_sent_);
      place.connection->greet();
      use(peer);
      if (receiver_) place.connection->start(*receiver_, *this);
      co_return;
    }
    // It calls back. If that comes to nothing, it is asked again.
    dialed.reset();
    asio::steady_timer timer(*io_, patience);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

Error TcpMesh::unreachable(int peer, const Error& last_try) const {
  const auto& told = places_[index(peer)].told;
  if (told) return Error(told->code(), told->what(), peer);
  return Error(ErrorCode::PeerLost,
               fmt::format("{}; its process has ended, or has left the job", last_try.what()),
               peer);
}

void TcpMesh::end_call(Place& place) {
  if (std::exchange(place.calling, false)) place.end_call.emit(asio::cancellation_type::terminal);
}

/// The connection with `peer` is in use from now on.
void TcpMesh::use(int peer) {
  Place& place = place_of(peer);
  if (std::exchange(place.confirmed, true)) return;
  if (peer > rank()) {
    end_call(place);  // the bell's
  } else {
    place.calling = false;  // by the call itself
  }
  place.told.reset();
  open_[index(peer)] = true;
  log(LogLevel::debug, "rank {} is connected to rank {} ({}) now that it needs to be", rank(), peer,
      host_of(peer));
  place.connection->open();
  for (auto& frame : std::exchange(place.waiting, {})) {
    place.connection->send(frame.header, frame.payload, std::move(frame.done));
  }
  if (receiver_) {
    greeting_ = true;
    receiver_->on_open(peer);
    greeting_ = false;
  }
  if (std::exchange(place.leaves, false)) place.connection->leave([this] { one_has_left(); });
}

/// A peer with which this rank was never connected.
void TcpMesh::lose(int peer, const Error& error) {
  Place& place = place_of(peer);
  if (place.lost || place.confirmed || peer == rank()) return;
  place.lost = error;
  end_call(place);
  if (place.connection) place.connection->abandon(error);
  for (auto& frame : std::exchange(place.waiting, {})) {
    if (frame.done) frame.done(std::make_exception_ptr(error));
  }
  if (std::exchange(place.leaves, false)) one_has_left();
  if (receiver_ && !leaving_) receiver_->on_lost(peer, error);
}

void TcpMesh::on_connection_lost(int peer, const Error& error, bool confirmed) {
  Place& place = place_of(peer);
  if (!confirmed) {
    place.connection.reset();
    if (!place.waiting.empty()) want(peer);
    return;
  }
  open_[index(peer)] = false;
  receiver_->on_lost(peer, error);
  // A rank that has left in good order is lost only for those that still need it.
  if (!dropping_ && !place.connection->peer_has_left()) tell_loss(peer, error);
}

/// Every rank passes the news on once, so that it reaches all, whichever ranks are lost or stopped.
void TcpMesh::tell_loss(int peer, const Error& loss) {
  if (complete_) return;
  const auto payload = std::make_shared<const std::vector<std::byte>>(
      encode_loss(Error(loss.code(), loss.what(), peer)));
  for (int other = 0; other < size(); ++other) {
    const Place& place = place_of(other);
    if (other == peer || !place.confirmed || !place.connection->stands()) continue;
    place.connection->send({.kind = FrameKind::Loss}, *payload, [payload](std::exception_ptr) {});
  }
}

/// A rank that is connected with the peer sees for itself. Others call the peer: it may be cut off
/// from the teller alone.
void TcpMesh::on_loss_told(int, std::span<const std::byte> payload) {
  const Error loss = decode_loss(payload, size());
  const int peer = *loss.rank();
  if (complete_ || peer == rank()) return;
  Place& place = place_of(peer);
  if (place.confirmed || place.lost || place.told) return;
  place.told = loss;
  tell_loss(peer, loss);
  want(peer);
}

}  // namespace bimetal::net
