#include "bimetal/net/tcp/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/silence.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {
namespace {

// A silence from this length on may explain why the other side has closed the connection.
constexpr std::chrono::milliseconds kNotedSilence{500};

}  // namespace

using asio::ip::tcp;

Connection::Connection(tcp::socket socket, ConnectionOptions options,
                       std::atomic<std::uint64_t>& bytes_sent)
    : socket_(std::move(socket)),
      options_(std::move(options)),
      incoming_(options_.receive_key),
      reader_(socket_, options_.receive_cipher),
      writer_(socket_, options_.send_key, options_.send_cipher, bytes_sent),
      stays_on_host_(ends_on_one_host(socket_)),
      peer_timeout_(peer_timeout_for(options_.peer_timeout, stays_on_host_)),
      path_(peer_timeout_),
      tell_at_(kLongSilence),
      resume_signal_(socket_.get_executor(), asio::steady_timer::time_point::max()),
      last_heartbeat_(std::chrono::steady_clock::now()),
      last_tick_(last_heartbeat_) {
  reader_.on_arrival([this] { arrived_ = true; });
  tune_for_frames(socket_, peer_timeout_);
  if (!stays_on_host_) path_.prepare(socket_);
}

std::string Connection::describe() const {
  return fmt::format("{} from {}", options_.peer_name, describe_local(socket_));
}

void Connection::open() {
  run(write_loop(shared_from_this()));
}

void Connection::run(asio::awaitable<void> loop) {
  spawn(socket_.get_executor(), std::move(loop),
        [self = shared_from_this()](const Error& error) { self->give_up(error); });
}

void Connection::greet() {
  writer_.push({.kind = FrameKind::Heartbeat}, {}, nullptr);
}

void Connection::start(FrameReceiver& receiver, ConnectionOwner& owner) {
  receiver_ = &receiver;
  owner_ = &owner;
  if (const auto loss = std::exchange(unreported_, std::nullopt)) {
    owner_->on_connection_lost(options_.peer, *loss, confirmed_);
  }
  if (state_ == State::ended || reading_) return;
  reading_ = true;
  run(read_loop(shared_from_this()));
}

void Connection::send(const FrameHeader& header, std::span<const std::byte> payload,
                      SendDone done) {
  if (!peer_left_) {
    writer_.push(header, payload, std::move(done));
    return;
  }
  const Error error(
      ErrorCode::PeerLost,
      fmt::format("{} has left the job in good order, but something is still sent to it",
                  options_.peer_name),
      options_.peer);
  if (done) done(std::make_exception_ptr(error));
  lose(error);
}

void Connection::resume() {
  resumed_ = true;
  resume_signal_.cancel();
}

void Connection::tick() {
  if (!confirmed_ || (state_ != State::open && state_ != State::leaving)) return;
  note_arrivals();
  const auto silence = path_.unanswered_for(socket_);
  if (silence >= peer_timeout_) {
    lose(Error(ErrorCode::PeerLost,
               fmt::format("{} has not acknowledged anything for {:g} s: its host or the network "
                           "between is down; {}",
                           options_.peer_name, std::chrono::duration<double>(peer_timeout_).count(),
                           kPeerTimeoutAdvice),
               options_.peer));
    return;
  }
  tell_silence(silence);
  if (paused_ && path_.closed_unread(socket_)) {
    lose(Error(ErrorCode::PeerLost,
               fmt::format("{} is gone: its connection was reset; its process has probably ended "
                           "or was killed",
                           options_.peer_name),
               options_.peer));
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (state_ != State::open || !writer_.idle() || now - last_heartbeat_ < options_.heartbeat)
    return;
  last_heartbeat_ = now;
  writer_.push({.kind = FrameKind::Heartbeat}, {}, nullptr);
}

/// A peer that is only stopped acknowledges, but sends no heartbeats. This process may have been
/// stopped itself: the time between two ticks counts as a heartbeat's at most.
void Connection::note_arrivals() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::steady_clock::now();
  const auto since = std::chrono::duration_cast<milliseconds>(now - last_tick_);
  last_tick_ = now;
  const bool listens = reading_ && !paused_ && state_ == State::open && !peer_left_;
  nothing_for_ = std::exchange(arrived_, false) || !listens
                     ? milliseconds(0)
                     : nothing_for_ + std::min(since, options_.heartbeat);
  note_silence(options_.peer, nothing_for_);
}

/// While it lasts, and what became of one that was told of.
void Connection::tell_silence(std::chrono::milliseconds silence) {
  if (silence >= kNotedSilence) {
    silence_ = silence;
    silent_until_ = std::chrono::steady_clock::now();
  }
  if (silence >= tell_at_) {
    log(LogLevel::warning,
        "waiting for {}: nothing for {} s (the job ends after {:g}; fabric.peer_timeout_s)",
        options_.peer_name, silence.count() / 1000,
        std::chrono::duration<double>(peer_timeout_).count());
    tell_at_ += kLongSilence;
  } else if (silence.count() == 0 && tell_at_ > kLongSilence) {
    log(LogLevel::warning, "{} is back after {:.1f} s", options_.peer_name,
        std::chrono::duration<double>(silence_).count());
    tell_at_ = kLongSilence;
  }
}

/// The silence before the end of the stream, if it may explain that end; empty otherwise.
std::string Connection::last_silence() const {
  if (std::chrono::steady_clock::now() - silent_until_ > peer_timeout_) return {};
  return fmt::format(" after nothing had come from it for {:.1f} s",
                     std::chrono::duration<double>(silence_).count());
}

void Connection::leave(std::function<void()> finished) {
  quiet_ = true;
  if (state_ == State::ended) {
    finished();
    return;
  }
  finished_ = std::move(finished);
  if (state_ == State::departed) return;  // our goodbye is queued already; its end finishes
  state_ = State::leaving;
  say_goodbye();
  resume();
  if (!std::exchange(reading_, true)) run(read_loop(shared_from_this()));
}

void Connection::drop() {
  lose(Error(ErrorCode::PeerLost,
             fmt::format("this side has given {} up and closed the connection", options_.peer_name),
             options_.peer));
}

void Connection::give_up(const Error& why) {
  lose(Error(why.code(),
             fmt::format("the connection with {} cannot go on: {}", options_.peer_name, why.what()),
             why.rank()));
}

void Connection::abandon(const Error& reason) {
  quiet_ = true;
  end(reason);
}

asio::awaitable<void> Connection::write_loop(std::shared_ptr<Connection> self) {
  const std::error_code error = co_await writer_.run();
  if (state_ == State::ended) co_return;
  if (error) {
    // The reading side decides whether this is a loss: a Goodbye may still lie in its buffer.
    writer_.fail(std::make_exception_ptr(Error(
        ErrorCode::PeerLost,
        fmt::format("{} does not take data any more: {}", options_.peer_name, error.message()),
        options_.peer)));
  } else {
    std::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }
  written_out_ = true;
  if (peer_left_) end(Error(ErrorCode::Aborted, "the connection was closed in good order"));
}

asio::awaitable<void> Connection::read_loop(std::shared_ptr<Connection> self) {
  try {
    const std::error_code error = co_await read_frames();
    if (state_ == State::ended) co_return;
    if (peer_left_) {
      on_goodbye();
    } else {
      on_stream_end(error);
    }
  } catch (const Error& error) {
    lose(Error(error.code(), fmt::format("{} sent bad data: {}", options_.peer_name, error.what()),
               options_.peer));
  } catch (const std::exception& error) {
    give_up(to_error(error));
  }
}

/// Returns when the peer has said goodbye (peer_left_) or the stream has ended otherwise.
asio::awaitable<std::error_code> Connection::read_frames() {
  EncodedHeader bytes;
  for (;;) {
    if (const auto error = co_await reader_.read(bytes)) co_return error;
    const FrameHeader header = decode_header(bytes, incoming_);
    note_first_frame();
    std::error_code error;
    switch (header.kind) {
      case FrameKind::Data:
      case FrameKind::Abort: error = co_await deliver(header); break;
      case FrameKind::Loss: error = co_await hear_of_loss(header); break;
      case FrameKind::Goodbye: peer_left_ = true; [[fallthrough]];
      case FrameKind::Heartbeat:
        if (header.payload_bytes != 0) {
          throw Error(ErrorCode::CorruptData, "a frame without payload announces one");
        }
    }
    if (error || peer_left_) co_return error;
  }
}

asio::awaitable<std::error_code> Connection::deliver(const FrameHeader& header) {
  const FrameReceiver::Placement placement = co_await place(header);
  if (discarding()) co_return co_await discard(header.payload_bytes);
  if (placement.bytes.size() != header.payload_bytes) {
    throw Error(ErrorCode::Internal, "the receiver's place does not fit the payload");
  }
  const std::error_code error = co_await reader_.read(placement.bytes);
  if (error || discarding()) co_return error;
  check_payload(header, placement.bytes, incoming_);
  receiver_->on_payload(options_.peer, header);
  co_return error;
}

void Connection::note_first_frame() {
  if (!std::exchange(confirmed_, true) && owner_) owner_->on_confirmed(options_.peer);
}

asio::awaitable<std::error_code> Connection::hear_of_loss(const FrameHeader& header) {
  if (header.payload_bytes > kMaxLossBytes) {
    throw Error(ErrorCode::CorruptData, "a frame tells of a loss in too many words");
  }
  std::vector<std::byte> payload(header.payload_bytes);
  const std::error_code error = co_await reader_.read(payload);
  if (error || discarding()) co_return error;
  check_payload(header, payload, incoming_);
  owner_->on_loss_told(options_.peer, payload);
  co_return error;
}

/// Asks the receiver where the payload goes, until it does not say pause.
asio::awaitable<FrameReceiver::Placement> Connection::place(const FrameHeader& header) {
  while (!discarding()) {
    resumed_ = false;
    const FrameReceiver::Placement placement = receiver_->on_header(options_.peer, header);
    if (!placement.pause) co_return placement;
    paused_ = true;
    while (!resumed_ && !discarding()) {
      std::error_code ignored;
      co_await resume_signal_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    paused_ = false;
  }
  co_return FrameReceiver::Placement{};
}

asio::awaitable<std::error_code> Connection::discard(std::uint64_t bytes) {
  std::array<std::byte, 4096> scratch;
  std::error_code error;
  while (bytes > 0 && !error) {
    const auto part = std::min<std::uint64_t>(bytes, scratch.size());
    error = co_await reader_.read(std::span(scratch).first(part));
    bytes -= part;
  }
  co_return error;
}

void Connection::say_goodbye() {
  writer_.push({.kind = FrameKind::Goodbye}, {}, nullptr);
  writer_.finish();
}

void Connection::on_goodbye() {
  if (state_ == State::open) {
    state_ = State::departed;
    say_goodbye();
  } else if (written_out_) {
    end(Error(ErrorCode::Aborted, "the connection was closed in good order"));
  }
}

void Connection::on_stream_end(const std::error_code& error) {
  const bool orderly = error == asio::error::eof;
  const std::string silence = last_silence();
  const char* const why =
      silence.empty() ? "its process has probably ended or was killed"
                      : "it has probably given this side up (fabric.peer_timeout_s), or its "
                        "process has ended";
  lose(Error(ErrorCode::PeerLost,
             orderly ? fmt::format("{} is gone: its connection closed without a goodbye{}; {}",
                                   options_.peer_name, silence, why)
                     : fmt::format("{} is gone: {}", options_.peer_name, error.message() + silence),
             options_.peer));
}

void Connection::lose(const Error& error) {
  end(error);
  if (std::exchange(quiet_, true)) return;
  if (owner_) {
    owner_->on_connection_lost(options_.peer, error, confirmed_);
  } else {
    unreported_ = error;
  }
}

/// Closes the socket and wakes all that wait; the loops then run out.
void Connection::end(const Error& reason) {
  if (state_ == State::ended) return;
  state_ = State::ended;
  std::error_code ignored;
  socket_.close(ignored);
  writer_.fail(std::make_exception_ptr(reason));
  resume();
  if (finished_) std::exchange(finished_, nullptr)();
}

}  // namespace bimetal::net
