#include "bimetal/parallel/server/link/link.h"

#include <fmt/format.h>

#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <system_error>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/net/tcp/sockets.h"

namespace bimetal::parallel::server {
namespace {

// For the other side to read why it was refused.
constexpr std::chrono::seconds kToReadTheRefusal{2};
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

Link::Link(asio::ip::tcp::socket connected, const net::SessionKeys& keys, Side side,
           std::atomic<std::uint64_t>& bytes_sent)
    : FrameSession(
          std::move(connected), keys, side,
          {.to_part = kToReadTheRefusal, .batch_bytes = kBatchBytes, .bytes_sent = &bytes_sent}),
      stays_on_host_(net::ends_on_one_host(socket())),
      next_beat_(socket().get_executor()) {
  net::queue_little(socket());
}

void Link::start(LinkHandler& handler) {
  handler_ = &handler;
  FrameSession::start();
  net::spawn(socket().get_executor(), beat_on(shared_from_this()),
             [this, self = shared_from_this()](const Error& error) { end(error); });
}

void Link::send(MessageKind kind, net::FrameHeader fields, Body body) {
  const auto kept = std::make_shared<const Body>(std::move(body));
  send_bulk(kind, fields, *kept, kept);
}

void Link::send_urgent(MessageKind kind, net::FrameHeader fields, Body body) {
  if (!is_open()) return;
  fields.kind = net::FrameKind::Data;
  fields.operation = static_cast<std::uint8_t>(kind);
  fields.sealed = is_sealed(kind);
  const auto kept = std::make_shared<const Body>(std::move(body));
  writer().push(
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
  if (!is_open()) return;
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
  if (memory_ && is_open() && bulk && payload.size() >= kLeastInMemory &&
      memory_->out().fits(payload.size())) {
    if (!memory_->out().put(payload)) return false;
    header.algorithm = kInMemory;
    header.count = payload.size();
    writer().push(header, {}, {});
  } else {
    writer().push(header, payload, std::move(done));
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
    log(LogLevel::info, "no shared memory for {}: {}", remote(), error.what());
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
    log(LogLevel::debug, "no memory in common with {}: {}", remote(), error.what());
  }
  send(MessageKind::memory_opened, answer);
}

void Link::on_memory_opened(bool opened) {
  if (!offered_) throw Error(ErrorCode::CorruptData, "shared memory that nobody has offered");
  log(LogLevel::info, "tensors to and from {} go through {}", remote(),
      opened ? "shared memory" : "the connection: there is no memory in common");
  offered_->opened();
  auto offered = std::move(offered_);
  if (opened) memory_ = std::move(offered);
}

bool Link::tell(const Error& why) {
  send(MessageKind::refused, {}, encode(why));
  return true;
}

void Link::on_ended(const Error& why) {
  if (auto* const handler = std::exchange(handler_, nullptr)) handler->on_closed(why);
}

void Link::finish() {
  handler_ = nullptr;
  leave();
}

void Link::close() {
  handler_ = nullptr;
  FrameSession::close();
}

void Link::finish_sending() {
  put_out_waiting();  // by the connection: nobody reads any more how much room there is
  FrameSession::finish_sending();
  next_beat_.cancel();
}

void Link::drop_unsent(const Error& why) {
  FrameSession::drop_unsent(why);
  waiting_.clear();
  next_beat_.cancel();
}

asio::awaitable<void> Link::read_messages() {
  while (is_open()) {
    auto header = co_await next_frame();
    if (!is_open()) co_return;
    if (memory_ && header.operation == static_cast<std::uint8_t>(MessageKind::taken)) {
      if (header.payload_bytes != 0) throw Error(ErrorCode::CorruptData, "a body out of place");
      memory_->out().on_taken(header.sequence);
      put_out_waiting();
      continue;
    }
    const bool in_memory = header.algorithm == kInMemory;
    if (in_memory) announce_as_if_it_followed(header);
    const auto into = place_of(header);
    if (in_memory) {
      take_from_memory(header, into);
    } else {
      co_await receive(header, into);
    }
    if (is_open()) handler_->on_message(header, into);
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

void Link::take_from_memory(const net::FrameHeader& header, std::span<std::byte> into) {
  if (!memory_) throw Error(ErrorCode::CorruptData, "a message in memory that nobody shares");
  memory_->in().take(into);
  if (const auto taken = memory_->in().news()) {
    net::FrameHeader answer;
    answer.operation = static_cast<std::uint8_t>(MessageKind::taken);
    answer.sequence = *taken;
    writer().push(answer, {}, {});  // past what waits: the other side may wait for just this
  }
  net::check_payload(header, into, incoming());
}

asio::awaitable<void> Link::beat_on(std::shared_ptr<Session> self) {
  std::error_code ignored;
  while (is_open()) {
    beat();
    next_beat_.expires_after(kHeartbeat);
    co_await next_beat_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
}

asio::awaitable<std::shared_ptr<Link>> dial_server(
    net::Endpoint server, std::string name, Credentials credentials,
    std::atomic<std::uint64_t>& bytes_sent, Deadline deadline,
    std::function<void(const std::string& trouble)> on_trouble) {
  auto request = net::dial_request(net::Service::Parameters, std::move(server), std::move(name),
                                   credentials, deadline);
  request.on_trouble = std::move(on_trouble);
  auto dialed = co_await net::dial(std::move(request));
  co_return std::make_shared<Link>(std::move(dialed.socket), dialed.keys, net::Side::client,
                                   bytes_sent);
}

}  // namespace bimetal::parallel::server
