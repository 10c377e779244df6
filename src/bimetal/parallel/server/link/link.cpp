#include "bimetal/parallel/server/link/link.h"

#include <fmt/format.h>

#include <array>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/co_spawn.hpp>
#include <asio/redirect_error.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <system_error>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/spawn.h"

namespace bimetal::parallel::server {
namespace {

// For the other side to read why it was refused; closing a socket with unread bytes would destroy
// what is on its way.
constexpr std::chrono::seconds kToReadTheRefusal{2};
// Beyond it the kernel gives a connection up of which nothing is acknowledged.
constexpr std::chrono::milliseconds kPathTimeout{3000};

// A piece: urgent messages wait for no more.
constexpr std::size_t kBatchBytes = std::size_t{1} << 18;

// In a frame's `algorithm`: its payload, of `count` bytes, lies in the ring.
constexpr std::uint8_t kInMemory = 1;
// Shorter ones are not worth it.
constexpr std::size_t kLeastInMemory = 1024;

void announce_as_if_it_followed(net::FrameHeader& header) {
  if (header.payload_bytes != 0 || !is_bulk(static_cast<MessageKind>(header.operation))) {
    throw Error(ErrorCode::CorruptData, "a message both in memory and on the connection");
  }
  header.payload_bytes = std::exchange(header.count, 0);
  header.algorithm = 0;
}

}  // namespace

Link::Link(asio::ip::tcp::socket socket, const net::SessionKeys& keys, Side side,
           std::atomic<std::uint64_t>& bytes_sent)
    : socket_(std::move(socket)),
      incoming_(side == Side::client ? keys.server_to_client : keys.client_to_server),
      remote_(net::describe_remote(socket_)),
      reader_(socket_, side == Side::client ? keys.cipher_to_client() : keys.cipher_to_server()),
      writer_(socket_, side == Side::client ? keys.client_to_server : keys.server_to_client,
              side == Side::client ? keys.cipher_to_server() : keys.cipher_to_client(), bytes_sent,
              kBatchBytes),
      timer_(socket_.get_executor()),
      heard_(std::chrono::steady_clock::now()) {
  reader_.on_arrival([this] { heard_ = std::chrono::steady_clock::now(); });
  net::tune_for_frames(socket_, kPathTimeout);
  net::queue_little(socket_);
}

void Link::start(LinkHandler& handler) {
  handler_ = &handler;
  // The signal must outlive what it may end.
  const auto ended = [self = shared_from_this()](const std::exception_ptr& failure) {
    if (failure) self->end(to_error(failure));
  };
  asio::co_spawn(socket_.get_executor(), read(shared_from_this()),
                 asio::bind_cancellation_slot(leave_off_.slot(), ended));
  const auto end_it = [self = shared_from_this()](const Error& error) { self->end(error); };
  net::spawn(socket_.get_executor(), write(shared_from_this()), end_it);
  net::spawn(socket_.get_executor(), beat(shared_from_this()), end_it);
}

void Link::send(MessageKind kind, net::FrameHeader fields, Body body) {
  const auto kept = std::make_shared<const Body>(std::move(body));
  send_bulk(kind, fields, *kept, kept);
}

void Link::send_urgent(MessageKind kind, net::FrameHeader fields, Body body) {
  if (leaving_ || closed_) return;
  fields.kind = net::FrameKind::Data;
  fields.operation = static_cast<std::uint8_t>(kind);
  fields.sealed = is_sealed(kind);
  const auto kept = std::make_shared<const Body>(std::move(body));
  writer_.push(
      fields, *kept, [kept](const std::exception_ptr&) {}, net::Priority::urgent);
}

void Link::send_then(MessageKind kind, net::FrameHeader fields, std::function<void()> gone) {
  send_frame(kind, {fields, {}, [this, gone = std::move(gone)](const std::exception_ptr& error) {
                      if (!error && handler_) gone();
                    }});
}

void Link::send_bulk(MessageKind kind, net::FrameHeader fields, std::span<const std::byte> payload,
                     Keep keep) {
  send_frame(kind, {fields, payload, [keep = std::move(keep)](const std::exception_ptr&) {}});
}

void Link::send_frame(MessageKind kind, Waiting frame) {
  if (leaving_ || closed_) return;
  frame.header.kind = net::FrameKind::Data;
  frame.header.operation = static_cast<std::uint8_t>(kind);
  frame.header.sealed = is_sealed(kind);
  if (waiting_.empty() && put_out(frame)) return;
  waiting_.push_back(std::move(frame));
}

/// False: it has to wait for room in the shared memory.
bool Link::put_out(Waiting& frame) {
  auto& [header, payload, done] = frame;
  const bool bulk = is_bulk(static_cast<MessageKind>(header.operation));
  if (memory_ && !leaving_ && bulk && payload.size() >= kLeastInMemory &&
      memory_->out().fits(payload.size())) {
    if (!memory_->out().put(payload)) return false;
    header.algorithm = kInMemory;
    header.count = payload.size();
    writer_.push(header, {}, {});
  } else {
    writer_.push(header, payload, std::move(done));
  }
  return true;
}

void Link::put_out_waiting() {
  while (!waiting_.empty() && put_out(waiting_.front())) waiting_.pop_front();
}

void Link::offer_memory(std::size_t ring_bytes) {
  try {
    offered_ = SharedPath::make(ring_bytes);
  } catch (const Error& error) {
    log(LogLevel::info, "no shared memory for {}: {}", remote_, error.what());
    return;
  }
  send(MessageKind::memory, {}, offered_->offer());
}

void Link::on_memory(std::span<const std::byte> offer) {
  if (memory_) throw Error(ErrorCode::CorruptData, "shared memory was offered twice");
  net::FrameHeader answer;
  try {
    memory_ = SharedPath::open(offer);
    answer.count = 1;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::CorruptData) throw;
    log(LogLevel::debug, "no memory in common with {}: {}", remote_, error.what());
  }
  send(MessageKind::memory_opened, answer);
}

void Link::on_memory_opened(bool opened) {
  if (!offered_) throw Error(ErrorCode::CorruptData, "shared memory that nobody has offered");
  log(LogLevel::info, "tensors to and from {} go through {}", remote_,
      opened ? "shared memory" : "the connection: there is no memory in common");
  offered_->opened();
  auto offered = std::move(offered_);
  if (opened) memory_ = std::move(offered);
}

void Link::refuse(const Error& error) {
  if (leaving_ || closed_) return;
  send(MessageKind::refused, {}, encode(error));
  LinkHandler* const handler = handler_;
  finish();
  if (handler) handler->on_closed(error);
}

void Link::finish() {
  handler_ = nullptr;
  if (leaving_ || closed_) return;
  leaving_ = true;
  put_out_waiting();  // by the connection: nobody reads any more how much room there is
  writer_.finish();
  timer_.cancel();  // from now on it bounds the end
  leave_off_.emit(asio::cancellation_type::terminal);
}

void Link::close() {
  handler_ = nullptr;
  stop_socket();
}

void Link::end(const Error& why) {
  LinkHandler* const handler = std::exchange(handler_, nullptr);
  stop_socket();
  if (handler) handler->on_closed(why);
}

void Link::stop_socket() {
  if (closed_) return;
  closed_ = true;
  std::error_code ignored;
  socket_.close(ignored);
  writer_.fail(std::make_exception_ptr(Error(ErrorCode::Aborted, "the connection was closed")));
  waiting_.clear();
  timer_.cancel();
}

asio::awaitable<void> Link::read(std::shared_ptr<Link> self) {
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
    failed = Error(ErrorCode::Internal, error.what());
  }
  if (failed && !leaving_ && !closed_) refuse(*failed);
  co_await asio::this_coro::reset_cancellation_state();
  if (!closed_) co_await discard_rest();
}

asio::awaitable<void> Link::read_messages() {
  while (!leaving_ && !closed_) {
    net::EncodedHeader bytes;
    if (const auto error = co_await reader_.read(bytes)) throw std::system_error(error);
    auto header = net::decode_header(bytes, incoming_);
    if (leaving_ || closed_) co_return;
    if (header.kind == net::FrameKind::Heartbeat && header.payload_bytes == 0) continue;
    if (header.kind != net::FrameKind::Data) {
      throw Error(ErrorCode::CorruptData, "a frame of a kind that has no place here");
    }
    if (memory_ && header.operation == static_cast<std::uint8_t>(MessageKind::taken)) {
      if (header.payload_bytes != 0) throw Error(ErrorCode::CorruptData, "a body out of place");
      memory_->out().on_taken(header.sequence);
      put_out_waiting();
      continue;
    }
    const bool in_memory = header.algorithm == kInMemory;
    if (in_memory) announce_as_if_it_followed(header);
    const auto into = place_of(header);
    co_await read_payload(into, in_memory);
    if (leaving_ || closed_) co_return;
    net::check_payload(header, into, incoming_);
    handler_->on_message(header, into);
  }
}

std::span<std::byte> Link::place_of(const net::FrameHeader& header) {
  std::span<std::byte> into;
  if (is_bulk(static_cast<MessageKind>(header.operation))) {
    into = handler_->place(header);
  } else if (header.payload_bytes <= kMaxBodyBytes) {
    body_.resize(header.payload_bytes);
    into = body_;
  }
  if (into.size() == header.payload_bytes) return into;
  throw Error(ErrorCode::CorruptData,
              fmt::format("a message of kind {} announces {} bytes, {} were expected",
                          header.operation, header.payload_bytes, into.size()));
}

asio::awaitable<void> Link::read_payload(std::span<std::byte> into, bool in_memory) {
  if (!in_memory) {
    if (const auto error = co_await reader_.read(into)) throw std::system_error(error);
    co_return;
  }
  if (!memory_) throw Error(ErrorCode::CorruptData, "a message in memory that nobody shares");
  memory_->in().take(into);
  if (const auto taken = memory_->in().news()) {
    net::FrameHeader header;
    header.kind = net::FrameKind::Data;
    header.operation = static_cast<std::uint8_t>(MessageKind::taken);
    header.sequence = *taken;
    writer_.push(header, {}, {});  // past what waits: the other side may wait for just this
  }
}

/// After finish(): until the other side hangs up, too, or its time is up (see beat).
asio::awaitable<void> Link::discard_rest() {
  std::array<std::byte, 4096> nothing;
  std::error_code error;
  while (!error && !closed_) {
    co_await socket_.async_read_some(asio::buffer(nothing),
                                     asio::redirect_error(asio::use_awaitable, error));
  }
  stop_socket();
}

asio::awaitable<void> Link::write(std::shared_ptr<Link> self) {
  const std::error_code error = co_await writer_.run();
  if (closed_) co_return;
  if (error) {
    // The reading side ends it: why the other side has gone may still be there to be read.
    writer_.fail(std::make_exception_ptr(Error(ErrorCode::PeerLost, error.message())));
    co_return;
  }
  std::error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
}

asio::awaitable<void> Link::beat(std::shared_ptr<Link> self) {
  std::error_code error;
  while (!closed_ && !leaving_) {
    net::FrameHeader heartbeat;
    heartbeat.kind = net::FrameKind::Heartbeat;
    if (writer_.idle()) writer_.push(heartbeat, {}, {});
    timer_.expires_after(kHeartbeat);
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  }
  if (closed_) co_return;
  timer_.expires_after(kToReadTheRefusal);
  co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, error));
  stop_socket();
}

}  // namespace bimetal::parallel::server
