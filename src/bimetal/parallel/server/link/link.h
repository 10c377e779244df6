#pragma once
// One connection between a worker and a server, or between servers. It is a session
// (net/link/session.h) that also sends heartbeats by itself and places tensors in their receiver's
// memory. It uses shared memory for them if there is some.
//
// The time since the other side of a connection was last heard. It is counted in ticks of this
// process, because a process that was stopped itself has heard nothing either.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"
#include "bimetal/net/link/session.h"
#include "bimetal/net/silence.h"
#include "bimetal/parallel/server/link/message.h"
#include "bimetal/parallel/server/link/shared_path.h"

namespace bimetal::parallel::server {

/// Sent on an idle connection that often.
inline constexpr std::chrono::milliseconds kHeartbeat{250};

class LinkHandler {
 public:
  virtual ~LinkHandler() = default;

  /// The place for a bulk message's payload: exactly header.payload_bytes, valid until on_message
  /// or on_closed, or until the connection's refuse(), finish() or close() is called: nothing is
  /// written there any more from then on. An Error thrown here or by on_message ends the
  /// connection; the other side is told.
  virtual std::span<std::byte> place(const net::FrameHeader& header) = 0;

  /// A whole message has arrived; `body` is a control message's, else what place() gave.
  virtual void on_message(const net::FrameHeader& header, std::span<const std::byte> body) = 0;

  /// The connection has ended, for whatever reason but close(). Called once.
  virtual void on_closed(const Error& why) = 0;
};

/// Tensors and bodies on their way out: whatever keeps the bytes alive.
using Keep = std::shared_ptr<const void>;

class Link final : public net::FrameSession {
 public:
  using Side = net::Side;

  Link(asio::ip::tcp::socket socket, const net::SessionKeys& keys, Side side,
       std::atomic<std::uint64_t>& bytes_sent);

  /// `handler` must outlive the connection or close().
  void start(LinkHandler& handler);

  void send(MessageKind kind, net::FrameHeader fields, Body body = {});
  /// The same, ahead of all queued messages: its meaning must not depend on them.
  void send_urgent(MessageKind kind, net::FrameHeader fields, Body body = {});
  /// The same as send(); `gone` is called when it and all before it have been handed to the system,
  /// unless the connection ends before.
  void send_then(MessageKind kind, net::FrameHeader fields, std::function<void()> gone);
  void send_bulk(MessageKind kind, net::FrameHeader fields, std::span<const std::byte> payload,
                 Keep keep);

  /// Client: offers memory for tensors, a ring of so many bytes for each direction. If the server
  /// sees it, tensors go that way from then on. If not, nothing changes.
  void offer_memory(std::size_t ring_bytes);
  /// Server: the other side's MessageKind::memory.
  void on_memory(std::span<const std::byte> offer);
  /// Client: its answer.
  void on_memory_opened(bool opened);

  /// Sends queued messages, then ends the connection. The handler is not called any more.
  void finish();

  /// Ends it at once. The handler is not called any more.
  void close();

  /// Whether both ends are on this machine.
  bool stays_on_host() const noexcept { return stays_on_host_; }

  /// Everything given to send() has been written.
  bool idle() const noexcept { return writer().idle() && waiting_.empty(); }

 private:
  asio::awaitable<void> read_messages() override;
  bool tell(const Error& why) override;
  void on_ended(const Error& why) override;
  void finish_sending() override;
  void drop_unsent(const Error& why) override;

  asio::awaitable<void> beat_on(std::shared_ptr<Session> self);
  std::span<std::byte> place_of(const net::FrameHeader& header);
  void take_from_memory(const net::FrameHeader& header, std::span<std::byte> into);
  struct Waiting {
    net::FrameHeader header;
    std::span<const std::byte> payload;
    net::SendDone done;  ///< keeps the payload alive
  };
  void send_frame(MessageKind kind, Waiting frame);
  bool put_out(Waiting& frame);
  void put_out_waiting();

  const bool stays_on_host_;
  asio::steady_timer next_beat_;
  std::unique_ptr<SharedPath> offered_, memory_;  ///< until it is opened; from then on
  std::deque<Waiting> waiting_;                   ///< for room there, and what comes behind
  LinkHandler* handler_ = nullptr;
  Body body_;
};

using net::Credentials;

/// Connects to a server, whose `name` is for messages. Errors of net::dial. `bytes_sent` must
/// outlive the connection, which is yet to be started. `on_trouble`: net::DialRequest's.
asio::awaitable<std::shared_ptr<Link>> dial_server(
    net::Endpoint server, std::string name, Credentials credentials,
    std::atomic<std::uint64_t>& bytes_sent, Deadline deadline,
    std::function<void(const std::string& trouble)> on_trouble = {});

/// The time without a word after which a peer counts as lost, and the job key that sets it.
struct Patience {
  std::chrono::milliseconds time;
  std::string_view set_by;
};

/// `peer_timeout`: fabric.peer_timeout_s; nothing: as for every other connection between hosts. On
/// one host no network is at fault, and a stopped process gets the time that a step's communication
/// may take.
inline Patience patience_for(std::optional<std::chrono::milliseconds> peer_timeout,
                             std::chrono::milliseconds timeout, bool stays_on_host) {
  if (stays_on_host && !peer_timeout) return {timeout, "parallel.timeout_s"};
  return {net::peer_timeout_for(peer_timeout, stays_on_host), "fabric.peer_timeout_s"};
}

class Silence {
 public:
  /// To be called once in each `tick`. `heard`: when something has last arrived.
  std::chrono::milliseconds after(std::chrono::milliseconds tick,
                                  std::chrono::steady_clock::time_point heard) {
    so_far_ = heard == heard_ ? so_far_ + tick : std::chrono::milliseconds(0);
    heard_ = heard;
    return so_far_;
  }

 private:
  std::chrono::steady_clock::time_point heard_{};
  std::chrono::milliseconds so_far_{0};
};

}  // namespace bimetal::parallel::server
