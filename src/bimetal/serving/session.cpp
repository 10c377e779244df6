#include "bimetal/serving/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <system_error>
#include <utility>

#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/spawn.h"

namespace bimetal::serving {
namespace {

using Clock = std::chrono::steady_clock;

/// Of one client: enough to send the next while one is computed.
constexpr int kMostPending = 4;
/// Longest silence in the middle of a request.
constexpr std::chrono::seconds kPatience{10};
/// Longest wait for a client to read an answer; a large one takes its time on a slow network.
constexpr std::chrono::seconds kToReadAnAnswer{60};
constexpr std::size_t kDiscardAtOnce = std::size_t{64} << 10;

}  // namespace

Session::Session(asio::ip::tcp::socket socket, const net::SessionKeys& keys, std::uint64_t number,
                 SessionOwner& owner)
    : wire_(std::move(socket), keys, Wire::Side::server),
      number_(number),
      remote_(net::describe_remote(wire_.socket)),
      owner_(owner),
      room_(wire_.socket.get_executor()) {}

void Session::start(const std::optional<Error>& refusal) {
  if (refusal) {
    refuse(*refusal);
  } else {
    send(MessageKind::welcome, 0, 0, encode(owner_.facts()));
  }
  const auto end_it = [self = shared_from_this()](const Error& error) { self->end(error.what()); };
  net::spawn(wire_.socket.get_executor(), read(shared_from_this()), end_it);
  net::spawn(wire_.socket.get_executor(), write(shared_from_this()), end_it);
}

void Session::send(MessageKind kind, std::uint64_t sequence, std::uint64_t count, Body body) {
  if (leaving_ || closed_) return;
  net::FrameHeader header;
  header.operation = static_cast<std::uint8_t>(kind);
  header.sequence = sequence;
  header.count = count;
  header.sealed = true;
  if (unsent_++ == 0) sent_ = Clock::now();
  const auto kept = std::make_shared<const Body>(std::move(body));
  wire_.writer.push(header, *kept, [this, kept](const std::exception_ptr&) {
    --unsent_;
    sent_ = Clock::now();
  });
}

void Session::tick() {
  const auto now = Clock::now();
  if (leaving_ || closed_) {
    if (!closed_ && sent_ + kPatience < now) close();
    return;
  }
  if (receiving_ && wire_.heard + kPatience < now) {
    refuse(Error(ErrorCode::Timeout, "nothing more of the request has come for 10 s"));
  } else if (unsent_ > 0 && sent_ + kToReadAnAnswer < now) {
    end("it does not read its answers");
  } else if ((pending_ > 0 || receiving_) && unsent_ == 0) {
    net::FrameHeader heartbeat;
    heartbeat.kind = net::FrameKind::Heartbeat;
    wire_.writer.push(heartbeat, {}, {});
  }
}

void Session::refuse(const Error& why) {
  if (leaving_ || closed_) return;
  owner_.on_refused();
  send(MessageKind::refused, 0, 0, encode(why));
  leaving_ = true;
  wire_.writer.finish();
  room_.cancel();
  owner_.on_ended(*this, why.what());
}

void Session::refuse_request(std::uint64_t request, const Error& why) {
  owner_.on_refused();
  send(MessageKind::refused, request, 0, encode(why));
}

void Session::end(const std::string& why) {
  const bool told = leaving_ || closed_;
  close();
  if (!told) owner_.on_ended(*this, why);
}

void Session::close() {
  if (closed_) return;
  closed_ = true;
  wire_.close();
  room_.cancel();
}

asio::awaitable<void> Session::read(std::shared_ptr<Session> self) {
  std::optional<Error> failed;
  try {
    co_await read_messages();
  } catch (const Error& error) {
    failed = error;
  } catch (const std::system_error& error) {
    end(error.code() == asio::error::eof ? "it has left" : error.code().message());
  } catch (const std::exception& error) {
    failed = Error(ErrorCode::Internal, error.what());
  }
  if (failed) refuse(*failed);
  if (!closed_) co_await discard_rest();
}

asio::awaitable<void> Session::write(std::shared_ptr<Session> self) {
  const std::error_code error = co_await wire_.writer.run();
  if (closed_) co_return;
  if (error) {
    end(error.message());
    co_return;
  }
  std::error_code ignored;
  wire_.socket.shutdown(asio::socket_base::shutdown_send, ignored);
}

asio::awaitable<void> Session::read_messages() {
  while (!leaving_ && !closed_) {
    while (pending_ >= kMostPending && !leaving_ && !closed_) co_await wait_for_room();
    if (leaving_ || closed_) co_return;
    const auto header = co_await wire_.next_header();
    if (leaving_ || closed_) co_return;
    const auto kind = static_cast<MessageKind>(header.operation);
    if (header.kind == net::FrameKind::Data && kind == MessageKind::predict) {
      co_await take_request(header);
    } else if (header.kind == net::FrameKind::Data && kind == MessageKind::write) {
      co_await take_text(header);
    } else if (header.kind == net::FrameKind::Data && kind == MessageKind::ask_figures &&
               header.payload_bytes == 0) {
      send(MessageKind::figures, header.sequence, 0, encode(owner_.figures()));
    } else {
      throw Error(ErrorCode::CorruptData, "a message that has no place here");
    }
  }
}

/// Until one of this client's requests has been answered, or a moment has passed.
asio::awaitable<void> Session::wait_for_room() {
  room_.expires_after(kTick);
  std::error_code ignored;
  co_await room_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
}

/// Room for a request. Where there is none, a client that has others here waits with the next one
/// until they have been answered; one that has none is turned away.
asio::awaitable<bool> Session::reserve(std::int64_t samples) {
  for (;;) {
    if (owner_.batcher()->reserve(samples)) co_return true;
    if (pending_ == 0 || leaving_ || closed_) co_return false;
    co_await wait_for_room();
  }
}

/// What is wrong with a request, as far as its header tells.
std::optional<Error> Session::flaw_of(const net::FrameHeader& header) const {
  const auto& facts = owner_.facts();
  if (!owner_.batcher()) {
    return Error(ErrorCode::InvalidArgument,
                 fmt::format("'{}' is a language model: it goes on with texts (bimetal generate)",
                             facts.model));
  }
  const auto dtype = static_cast<comm::DType>(header.dtype);
  if (!is_sample_type(dtype)) {
    return Error(ErrorCode::InvalidArgument,
                 "samples must be uint8 (pixels), or float32 or float64 (normalised)");
  }
  const auto most = most_samples(facts, dtype);
  if (header.count < 1 || header.count > static_cast<std::uint64_t>(most)) {
    return Error(ErrorCode::InvalidArgument,
                 fmt::format("a request has from 1 to {} samples of this model, not {}", most,
                             header.count));
  }
  const auto expected =
      header.count * static_cast<std::uint64_t>(facts.values_per_sample()) * comm::size_of(dtype);
  if (header.payload_bytes == expected) return std::nullopt;
  return Error(
      ErrorCode::InvalidArgument,
      fmt::format("the model '{}' takes images of {}x{}x{}: {} samples of {} are {} bytes, "
                  "not {}",
                  facts.model, facts.channels, facts.height, facts.width, header.count,
                  comm::to_string(dtype), expected, header.payload_bytes));
}

asio::awaitable<void> Session::take_request(net::FrameHeader header) {
  if (header.payload_bytes > kMaxRequestBytes) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a request of {} bytes; at most {} are taken", header.payload_bytes,
                            kMaxRequestBytes));
  }
  auto flaw = flaw_of(header);
  const auto samples = static_cast<std::int64_t>(header.count);
  const bool room = !flaw && co_await reserve(samples);
  if (!flaw && !room) {
    flaw = Error(ErrorCode::Aborted,
                 fmt::format("the server is busy: {} samples wait already; try again later",
                             owner_.batcher()->waiting()));
  }
  receiving_ = true;
  wire_.heard = Clock::now();
  std::error_code error;
  if (flaw) {
    error = co_await discard(header.payload_bytes);
  } else {
    auto request = new_request(header);
    try {
      error = co_await wire_.receive(request->values);
      if (!error) net::check_payload(header, request->values, wire_.incoming);
    } catch (...) {
      owner_.batcher()->release(samples);
      throw;
    }
    if (error || leaving_ || closed_) {
      owner_.batcher()->release(samples);
    } else {
      ++pending_;
      owner_.batcher()->add(std::move(request));
    }
  }
  receiving_ = false;
  if (error) throw std::system_error(error);
  if (flaw) refuse_request(header.sequence, *flaw);
}

std::shared_ptr<Request> Session::new_request(const net::FrameHeader& header) {
  auto request = std::make_shared<Request>();
  request->client = number_;
  request->dtype = static_cast<comm::DType>(header.dtype);
  request->samples = static_cast<std::int64_t>(header.count);
  request->values.resize(header.payload_bytes);
  request->done = [&owner = owner_, weak = weak_from_this(), sequence = header.sequence](
                      Request& done, const std::optional<Error>& error) {
    auto body = error ? encode(*error) : encode(done.predicted);
    const auto samples = error ? 0 : done.samples;
    owner.post([weak, sequence, samples, body = std::move(body)]() mutable {
      if (const auto self = weak.lock()) self->answer(sequence, samples, std::move(body));
    });
  };
  return request;
}

/// No samples: the body is an Error.
void Session::answer(std::uint64_t sequence, std::int64_t samples, Body body) {
  --pending_;
  room_.cancel();
  if (samples == 0) owner_.on_refused();
  send(samples > 0 ? MessageKind::predicted : MessageKind::refused, sequence,
       static_cast<std::uint64_t>(samples), std::move(body));
}

asio::awaitable<std::error_code> Session::discard(std::uint64_t bytes) {
  std::vector<std::byte> nothing(std::min<std::uint64_t>(bytes, kDiscardAtOnce));
  while (bytes > 0) {
    const auto piece = std::span(nothing).first(std::min<std::uint64_t>(bytes, nothing.size()));
    if (const auto error = co_await wire_.receive(piece)) co_return error;
    bytes -= piece.size();
  }
  co_return std::error_code();
}

/// After a refusal: until the other side hangs up, too, or tick() has waited long enough. Closing
/// with bytes unread would destroy the refusal on its way.
asio::awaitable<void> Session::discard_rest() {
  std::array<std::byte, 4096> nothing;
  std::error_code error;
  while (!error && !closed_) {
    co_await wire_.socket.async_read_some(asio::buffer(nothing),
                                          asio::redirect_error(asio::use_awaitable, error));
  }
  close();
}

}  // namespace bimetal::serving
