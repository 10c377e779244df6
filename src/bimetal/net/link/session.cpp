#include "bimetal/net/link/session.h"

#include <array>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <asio/redirect_error.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {
namespace {

JobDigest job_of(const Credentials& credentials) {
  return credentials.job_id.empty() ? JobDigest{} : digest_of_job(credentials.job_id);
}

}  // namespace

ListenerOptions listener_options(Service service, const Credentials& credentials) {
  ListenerOptions options;
  options.token = credentials.token;
  options.service = service;
  options.admit = [job = job_of(credentials), encrypted = credentials.encryption == Encryption::on](
                      const Hello& hello) -> std::optional<Refusal> {
    if (hello.job != job) return Refusal::Job;
    if (hello.encrypted != encrypted) return Refusal::Encryption;
    return std::nullopt;
  };
  return options;
}

DialRequest dial_request(Service service, Endpoint server, std::string name,
                         const Credentials& credentials, Deadline deadline) {
  DialRequest request{.addresses = {std::move(server)},
                      .name = std::move(name),
                      .token = credentials.token,
                      .hello = {},
                      .deadline = deadline};
  request.hello.service = service;
  request.hello.job = job_of(credentials);
  request.hello.encrypted = credentials.encryption == Encryption::on;
  return request;
}

namespace {

// After this time without an acknowledgement the kernel gives a connection up. The user of the
// connection knows better, and sooner, how long its other side may be silent.
constexpr std::chrono::milliseconds kPathTimeout{std::chrono::minutes(5)};

}  // namespace

FrameSession::FrameSession(asio::ip::tcp::socket connected, const SessionKeys& keys, Side side,
                           const FrameSessionOptions& options)
    : Session(std::move(connected), keys, side, options.to_part),
      writer_(socket(), sent_by(side, keys).seal, sent_by(side, keys).cipher,
              options.bytes_sent ? *options.bytes_sent : uncounted_, options.batch_bytes) {
  tune_for_frames(socket(), kPathTimeout);
}

asio::awaitable<FrameHeader> FrameSession::next_frame() {
  for (EncodedHeader bytes;;) {
    co_await reader().fill(bytes);
    const FrameHeader header = decode_header(bytes, incoming());
    if (header.kind == FrameKind::Data) co_return header;
    if (header.kind != FrameKind::Heartbeat || header.payload_bytes != 0) {
      throw Error(ErrorCode::CorruptData, "a frame of a kind that has no place here");
    }
  }
}

asio::awaitable<void> FrameSession::receive(FrameHeader header, std::span<std::byte> into) {
  co_await reader().fill(into);
  // Else it may be nobody's memory any more.
  if (is_open()) check_payload(header, into, incoming());
}

void FrameSession::beat() {
  if (!writer_.idle()) return;
  FrameHeader heartbeat;
  heartbeat.kind = FrameKind::Heartbeat;
  writer_.push(heartbeat, {}, {});
}

namespace {

Side other(Side side) {
  return side == Side::client ? Side::server : Side::client;
}

}  // namespace

Direction sent_by(Side side, const SessionKeys& keys) {
  if (side == Side::client) return {keys.client_to_server, keys.cipher_to_server()};
  return {keys.server_to_client, keys.cipher_to_client()};
}

Session::Session(asio::ip::tcp::socket connected, const SessionKeys& keys, Side side,
                 std::chrono::milliseconds to_part)
    : socket_(std::move(connected)),
      remote_(describe_remote(socket_)),
      incoming_(sent_by(other(side), keys).seal),
      reader_(socket_, sent_by(other(side), keys).cipher),
      to_part_(to_part),
      parting_(socket_.get_executor()) {
  reader_.on_arrival([this] { heard_ = Clock::now(); });
  std::error_code ignored;  // the other side may have gone already; the first read tells
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
}

void Session::start() {
  // The signal must outlive what it may end.
  const auto ended = [self = shared_from_this()](const std::exception_ptr& failure) {
    if (failure) self->end(to_error(failure));
  };
  asio::co_spawn(socket_.get_executor(), read(shared_from_this()),
                 asio::bind_cancellation_slot(leave_off_.slot(), ended));
  spawn(socket_.get_executor(), write(shared_from_this()),
        [self = shared_from_this()](const Error& error) { self->end(error); });
}

void Session::refuse(const Error& why) {
  if (!is_open()) return;
  if (!tell(why)) return end(why);
  leave();
  on_ended(why);
}

void Session::leave() {
  if (!is_open()) return;
  leaving_ = true;
  finish_sending();
  limit_parting();
  // A coroutine that has not begun would be ended by it, and nobody hear the other side hang up.
  if (reading_) leave_off_.emit(asio::cancellation_type::terminal);
}

/// Closing a socket with unread bytes at once would destroy data on its way to the other side.
void Session::limit_parting() {
  parting_.expires_after(to_part_);
  parting_.async_wait([self = shared_from_this()](const std::error_code& error) {
    if (!error) self->close();
  });
}

void Session::end(const Error& why) {
  const bool told = !is_open();
  close();
  if (!told) on_ended(why);
}

void Session::close() {
  if (closed_) return;
  closed_ = true;
  std::error_code ignored;
  socket_.close(ignored);
  parting_.cancel();
  drop_unsent(Error(ErrorCode::Aborted, "the connection was closed"));
}

asio::awaitable<void> Session::read(std::shared_ptr<Session> self) {
  reading_ = true;
  std::optional<Error> failed;
  try {
    co_await read_messages();
  } catch (const Error& error) {
    failed = error;
  } catch (const std::system_error& error) {
    const bool ended = error.code() == asio::error::eof;
    const Error lost(ErrorCode::PeerLost,
                     ended ? "it closed the connection" : error.code().message());
    if (!leaving_ || error.code() != asio::error::operation_aborted) end(lost);
  } catch (const std::exception& error) {
    failed = to_error(error);
  }
  if (failed) refuse(*failed);
  co_await asio::this_coro::reset_cancellation_state();
  if (!closed_) co_await discard_rest();
}

asio::awaitable<void> Session::write(std::shared_ptr<Session> self) {
  const std::error_code error = co_await send_messages();
  if (closed_) co_return;
  if (error) {
    // The reading side ends it: why the other side has gone may still be there to be read.
    drop_unsent(Error(ErrorCode::PeerLost, error.message()));
    co_return;
  }
  std::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
}

/// After leave(): until the other side hangs up, too, or its time is up.
asio::awaitable<void> Session::discard_rest() {
  std::array<std::byte, 4096> nothing;
  std::error_code error;
  while (!error && !closed_) {
    co_await socket_.async_read_some(asio::buffer(nothing),
                                     asio::redirect_error(asio::use_awaitable, error));
  }
  close();
}

}  // namespace bimetal::net
