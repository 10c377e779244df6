#include "bimetal/serving/session.h"

#include <fmt/format.h>

#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

#include "bimetal/serving/answering.h"

namespace bimetal::serving {
namespace {

/// The most requests pending for one client: enough to send the next while one is computed.
constexpr int kMostPending = 4;
/// Longest silence in the middle of a request, and for a client to read why it is refused.
constexpr std::chrono::seconds kPatience{10};
/// Longest wait for a client to read an answer; a large one takes its time on a slow network.
constexpr std::chrono::seconds kToReadAnAnswer{60};
constexpr std::size_t kDiscardAtOnce = std::size_t{64} << 10;

}  // namespace

Session::Session(asio::ip::tcp::socket socket, const net::SessionKeys& keys, std::uint64_t number,
                 SessionOwner& owner)
    : FrameSession(std::move(socket), keys, net::Side::server, {.to_part = kPatience}),
      number_(number),
      owner_(owner),
      room_(this->socket().get_executor()) {}

void Session::start(const std::optional<Error>& refusal) {
  FrameSession::start();
  if (refusal) {
    refuse(*refusal);
  } else {
    send(MessageKind::welcome, 0, 0, encode(owner_.facts()));
  }
}

void Session::send(MessageKind kind, std::uint64_t sequence, std::uint64_t count, Body body) {
  if (!is_open()) return;
  net::FrameHeader header;
  header.operation = static_cast<std::uint8_t>(kind);
  header.sequence = sequence;
  header.count = count;
  header.sealed = true;
  if (unsent_++ == 0) sent_ = Clock::now();
  const auto kept = std::make_shared<const Body>(std::move(body));
  writer().push(header, *kept, [this, kept](const std::exception_ptr&) {
    --unsent_;
    sent_ = Clock::now();
  });
}

void Session::tick() {
  if (!is_open()) return;
  const auto now = Clock::now();
  if (receiving_ && heard() + kPatience < now) {
    refuse(Error(ErrorCode::Timeout, "nothing more of the request has come for 10 s"));
  } else if (unsent_ > 0 && sent_ + kToReadAnAnswer < now) {
    end(Error(ErrorCode::Timeout, "it does not read its answers"));
  } else if (pending_ > 0 || receiving_) {
    beat();
  }
}

bool Session::tell(const Error& why) {
  refuse_request(0, why);
  return true;
}

void Session::refuse_request(std::uint64_t request, const Error& why) {
  owner_.on_refused();
  send(MessageKind::refused, request, 0, encode(why));
}

void Session::on_ended(const Error& why) {
  owner_.on_ended(*this, why.what());
}

void Session::finish_sending() {
  FrameSession::finish_sending();
  room_.cancel();
}

void Session::drop_unsent(const Error& why) {
  FrameSession::drop_unsent(why);
  room_.cancel();
}

asio::awaitable<void> Session::read_messages() {
  while (is_open()) {
    while (pending_ >= kMostPending && is_open()) co_await wait_for_room();
    if (!is_open()) co_return;
    const auto header = co_await next_frame();
    if (!is_open()) co_return;
    const auto kind = static_cast<MessageKind>(header.operation);
    if (kind == MessageKind::predict) {
      co_await take_request(header);
    } else if (kind == MessageKind::write) {
      co_await take_text(header);
    } else if (kind == MessageKind::ask_figures && header.payload_bytes == 0) {
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
    if (!is_open()) co_return false;  // a reservation for a session that ends stays
    if (owner_.batcher()->reserve(samples)) co_return true;
    if (pending_ == 0) co_return false;
    co_await wait_for_room();
  }
}

/// The fault of a request, as far as its header tells.
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
      fmt::format("the model '{}' takes images of {}x{}x{}: {} samples of {} are {} bytes, not {}",
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
  expect();
  if (flaw) {
    co_await discard(header.payload_bytes);
  } else {
    co_await take_samples(header);
  }
  receiving_ = false;
  if (flaw) refuse_request(header.sequence, *flaw);
}

/// Those of a request for which there is room.
asio::awaitable<void> Session::take_samples(net::FrameHeader header) {
  auto request = new_request(header);
  const auto samples = request->samples;
  try {
    co_await receive(header, request->values);
  } catch (...) {
    owner_.batcher()->release(samples);
    throw;
  }
  if (is_open()) {
    ++pending_;
    owner_.batcher()->add(std::move(request));
  } else {
    owner_.batcher()->release(samples);
  }
}

std::weak_ptr<Session> Session::weak() {
  return std::static_pointer_cast<Session>(shared_from_this());
}

std::shared_ptr<Request> Session::new_request(const net::FrameHeader& header) {
  auto request = std::make_shared<Request>();
  request->client = number_;
  request->dtype = static_cast<comm::DType>(header.dtype);
  request->samples = static_cast<std::int64_t>(header.count);
  request->values.resize(header.payload_bytes);
  request->done = [&owner = owner_, weak = weak(), sequence = header.sequence](
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

asio::awaitable<void> Session::discard(std::uint64_t bytes) {
  std::vector<std::byte> nothing(std::min<std::uint64_t>(bytes, kDiscardAtOnce));
  while (bytes > 0) {
    const auto piece = std::min<std::uint64_t>(bytes, nothing.size());
    co_await reader().fill(std::span(nothing).first(piece));
    bytes -= piece;
  }
}

// A session's part for clients of a language model.

asio::awaitable<void> Session::take_text(net::FrameHeader header) {
  if (header.payload_bytes > kMaxRequestBytes) {
    throw Error(ErrorCode::InvalidArgument, fmt::format("a text of {} bytes; at most {} are taken",
                                                        header.payload_bytes, kMaxRequestBytes));
  }
  Body body(header.payload_bytes);
  receiving_ = true;
  expect();
  co_await receive(header, body);
  receiving_ = false;
  if (is_open()) add_text(header.sequence, decode_text_request(body));
}

void Session::add_text(std::uint64_t sequence, TextRequest wanted) {
  const auto texts = owner_.texts();
  if (!texts) {
    return refuse_request(sequence,
                          Error(ErrorCode::InvalidArgument,
                                fmt::format("the model '{}' is no language model: it predicts the "
                                            "classes of images (bimetal predict)",
                                            owner_.facts().model)));
  }
  TextJob job{.client = number_,
              .wanted = std::move(wanted),
              .arrived = std::chrono::steady_clock::now(),
              .tell = {}};
  job.tell = [&owner = owner_, weak = weak(), sequence](TextPiece piece,
                                                        const std::optional<Error>& failure) {
    owner.post([weak, sequence, failure, piece = std::move(piece)] {
      if (const auto self = weak.lock()) self->more_text(sequence, piece, failure);
    });
  };
  ++pending_;
  if (texts->add(std::move(job))) return;
  --pending_;
  refuse_request(sequence,
                 Error(ErrorCode::Aborted,
                       "the server is busy: too many texts wait already; try again later"));
}

void Session::more_text(std::uint64_t sequence, const TextPiece& piece,
                        const std::optional<Error>& failure) {
  if (failure || piece.last) {
    --pending_;
    room_.cancel();
  }
  if (failure) return refuse_request(sequence, *failure);
  send(MessageKind::written, sequence, piece.tokens.size(), encode(piece));
}

}  // namespace bimetal::serving
