#include "bimetal/serving/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/awaitable.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "bimetal/net/tcp/dial.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/serving/wire.h"

namespace bimetal::serving {

/// What a client has once it is connected.
struct Greeted : Wire {
  Greeted(asio::ip::tcp::socket connected, const net::SessionKeys& keys)
      : Wire(std::move(connected), keys, Side::client) {}
  ModelFacts facts;
};

/// What predict() was called with.
struct Question {
  std::span<const std::byte> values;
  comm::DType dtype = comm::DType::uint8;
  std::int64_t samples = 0;
};

struct ServerMessage {
  net::FrameHeader header;
  Body body;
};

namespace {

using Clock = std::chrono::steady_clock;

/// Requests on their way at once: the server computes one while it receives the next.
constexpr std::int64_t kAtOnce = 2;
/// A server says something every 250 ms while a client waits.
constexpr std::chrono::seconds kSilence{10};
constexpr std::chrono::milliseconds kLook{250};
asio::awaitable<void> write_frames(std::shared_ptr<Greeted> wire) {
  co_await wire->writer.run();  // what has failed is noticed by who reads
}

/// The next message; heartbeats are passed over.
asio::awaitable<ServerMessage> next_message(Wire& wire) {
  ServerMessage message;
  do {
    message.header = co_await wire.next_header();
  } while (message.header.kind == net::FrameKind::Heartbeat);
  const bool answer = static_cast<MessageKind>(message.header.operation) == MessageKind::predicted;
  if (message.header.payload_bytes > (answer ? kMaxRequestBytes : kMaxBodyBytes)) {
    throw Error(ErrorCode::CorruptData, "it announces more bytes than an answer can have");
  }
  message.body.resize(message.header.payload_bytes);
  if (const auto error = co_await wire.receive(message.body)) throw std::system_error(error);
  net::check_payload(message.header, message.body, wire.incoming);
  co_return message;
}

/// The next message, which is no refusal. `server` names it in errors.
asio::awaitable<ServerMessage> next_answer(Wire& wire, std::string server) {
  ServerMessage message;
  try {
    message = co_await next_message(wire);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} sent bad data: {}", server, error.what()));
  }
  const auto kind = static_cast<MessageKind>(message.header.operation);
  if (kind != MessageKind::refused) co_return message;
  const Error refusal = decode_refused(message.body);
  if (refusal.code() != ErrorCode::CorruptData) throw refusal;
  throw Error(refusal.code(), fmt::format("{} received bad data: {}", server, refusal.what()));
}

/// A server says nothing to a client that asks nothing, unless it ends.
bool still_there(asio::ip::tcp::socket& socket) {
  std::error_code error;
  std::byte first{};
  socket.non_blocking(true, error);
  if (!error) {
    socket.receive(asio::buffer(&first, 1), asio::socket_base::message_peek, error);
  }
  return error == asio::error::would_block;
}

}  // namespace

struct Client::Impl {
  explicit Impl(const ClientOptions& given) : options(given), address(given.server) {}
  ~Impl() { disconnect(); }

  std::string name() const {
    return fmt::format("the server of predictions at {}", net::to_string(address));
  }

  template <typename Result>
  Result run(asio::awaitable<Result> task, Deadline deadline);
  void connect(Deadline deadline);
  void ask_directory(const Error& refusal, Deadline deadline);
  asio::awaitable<bool> greet(Deadline deadline);
  asio::awaitable<Predicted> exchange(Question question);
  void ask(const Question& question, std::int64_t first, std::int64_t count);
  asio::awaitable<Figures> fetch_figures();
  void disconnect();
  void require_sound(const Question& question) const;

  const ClientOptions options;
  net::Endpoint address;  ///< of who answers, once that is known
  asio::io_context io{1};
  std::shared_ptr<Greeted> wire;
  std::uint64_t sequence = 0;
};

void Client::Impl::disconnect() {
  if (wire) {
    wire->close();
    wire.reset();
  }
  // Coroutines that wait on the socket end now; others, which connect, by their deadline.
  io.restart();
  io.run();
}

/// Runs `task` on this thread until it is done, the deadline, or too long a silence. What it throws
/// ends the connection.
template <typename Result>
Result Client::Impl::run(asio::awaitable<Result> task, Deadline deadline) {
  std::exception_ptr failure;
  std::optional<Result> result;
  bool done = false;
  asio::co_spawn(io, std::move(task), [&](std::exception_ptr error, Result value) {
    failure = error;
    if (!error) result = std::move(value);
    done = true;
  });
  io.restart();
  bool silent = false;
  while (!done && !deadline.expired() && !silent) {
    io.run_one_until(min(deadline, Deadline::after(kLook)).time());
    silent = wire && wire->heard + kSilence < Clock::now();
  }
  const bool in_time = done;
  if (!in_time || failure) disconnect();
  if (result) return std::move(*result);
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::system_error& error) {
    const bool ended = error.code() == asio::error::eof;
    if (in_time) {
      throw Error(ErrorCode::PeerLost,
                  fmt::format("{} is gone: {}", name(),
                              ended ? "it closed the connection" : error.code().message()));
    }
  }
  throw Error(ErrorCode::Timeout, silent ? fmt::format("{} has said nothing for 10 s", name())
                                         : fmt::format("{} did not answer in time", name()));
}

asio::awaitable<bool> Client::Impl::greet(Deadline deadline) {
  net::DialRequest request{.addresses = {address},
                           .name = name(),
                           .token = options.token,
                           .hello = {},
                           .deadline = deadline};
  request.hello.service = net::Service::Predictions;
  request.hello.encrypted = options.encryption == net::Encryption::on;
  auto dialed = co_await net::dial(std::move(request));
  auto fresh = std::make_shared<Greeted>(std::move(dialed.socket), dialed.keys);
  wire = fresh;
  asio::co_spawn(io, write_frames(fresh), asio::detached);
  const auto message = co_await next_answer(*fresh, name());
  const auto kind = static_cast<MessageKind>(message.header.operation);
  if (kind != MessageKind::welcome) {
    throw Error(ErrorCode::CorruptData, fmt::format("{} does not greet", name()));
  }
  fresh->facts = decode_model_facts(message.body);
  co_return true;
}

void Client::Impl::connect(Deadline deadline) {
  if (wire && still_there(wire->socket)) return;
  disconnect();
  address = options.server;
  sequence = 0;
  try {
    run(greet(deadline), deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::ProtocolMismatch) throw;
    ask_directory(error, deadline);
    run(greet(deadline), deadline);
  }
}

/// What answers there may be the directory of a job, which knows who serves its predictions.
void Client::Impl::ask_directory(const Error& refusal, Deadline deadline) {
  std::unique_ptr<rendezvous::Store> directory;
  try {
    directory =
        rendezvous::connect_store(options.server, options.token, deadline, options.encryption);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::ProtocolMismatch) throw refusal;
    throw;
  }
  const auto where = directory->try_get(kDirectoryKey, deadline);
  if (!where) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("the job at {} serves no predictions: it trains without parameter "
                            "servers (parallel.mode = \"server\"), or has not begun yet; of its "
                            "checkpoints `bimetal serve` does",
                            net::to_string(options.server)));
  }
  address = net::parse_endpoint(*where);
}

void Client::Impl::require_sound(const Question& question) const {
  const auto& [values, dtype, samples] = question;
  if (!is_sample_type(dtype)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("samples must be uint8 (pixels), or float32 or float64 (normalised), "
                            "not {}",
                            comm::to_string(dtype)));
  }
  const auto& facts = wire->facts;
  const auto each = static_cast<std::size_t>(facts.values_per_sample()) * comm::size_of(dtype);
  if (samples >= 1 && values.size() == static_cast<std::size_t>(samples) * each) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the model '{}' takes images of {}x{}x{}; {} samples in {} bytes of {} "
                          "are none",
                          facts.model, facts.channels, facts.height, facts.width, samples,
                          values.size(), comm::to_string(dtype)));
}

void Client::Impl::ask(const Question& question, std::int64_t first, std::int64_t count) {
  net::FrameHeader header;
  header.operation = static_cast<std::uint8_t>(MessageKind::predict);
  header.sequence = ++sequence;
  header.dtype = static_cast<std::uint8_t>(question.dtype);
  header.count = static_cast<std::uint64_t>(count);
  header.sealed = true;
  const auto each = question.values.size() / static_cast<std::size_t>(question.samples);
  wire->writer.push(header,
                    question.values.subspan(each * static_cast<std::size_t>(first),
                                            each * static_cast<std::size_t>(count)),
                    {});
}

asio::awaitable<Predicted> Client::Impl::exchange(Question question) {
  const auto own = wire;
  const auto classes = own->facts.classes;
  const auto samples = question.samples;
  const auto most = most_samples(own->facts, question.dtype);
  const auto requests = (samples + most - 1) / most;
  const auto before = sequence;
  Predicted all;
  all.logits.resize(static_cast<std::size_t>(classes * samples));
  own->heard = Clock::now();
  std::int64_t sent = 0;
  for (std::int64_t answers = 0; answers < requests; ++answers) {
    for (; sent < std::min(requests, answers + kAtOnce); ++sent) {
      ask(question, sent * most, std::min(most, samples - sent * most));
    }
    const auto message = co_await next_answer(*own, name());
    const auto kind = static_cast<MessageKind>(message.header.operation);
    const auto index = static_cast<std::int64_t>(message.header.sequence - before - 1);
    if (kind != MessageKind::predicted || index < 0 || index >= sent) {
      throw Error(ErrorCode::CorruptData, fmt::format("{} answers what was not asked", name()));
    }
    const auto count = std::min(most, samples - index * most);
    const auto part = decode_predicted(message.body, static_cast<std::size_t>(classes * count));
    std::ranges::copy(part.logits, all.logits.begin() + index * most * classes);
    if (answers == 0) all.weights = part.weights;
    all.weights.oldest = std::min(all.weights.oldest, part.weights.oldest);
    all.weights.newest = std::max(all.weights.newest, part.weights.newest);
  }
  co_return all;
}

asio::awaitable<Figures> Client::Impl::fetch_figures() {
  const auto own = wire;
  net::FrameHeader header;
  header.operation = static_cast<std::uint8_t>(MessageKind::ask_figures);
  header.sequence = ++sequence;
  own->heard = Clock::now();
  own->writer.push(header, {}, {});
  const auto message = co_await next_answer(*own, name());
  const auto kind = static_cast<MessageKind>(message.header.operation);
  if (kind != MessageKind::figures) {
    throw Error(ErrorCode::CorruptData, fmt::format("{} answers what was not asked", name()));
  }
  co_return decode_figures(message.body);
}

Client::Client(const ClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Client::~Client() = default;

ModelFacts Client::facts(Deadline deadline) {
  impl_->connect(deadline);
  return impl_->wire->facts;
}

Predicted Client::predict(std::span<const std::byte> values, comm::DType dtype,
                          std::int64_t samples, Deadline deadline) {
  impl_->connect(deadline);
  const Question question{values, dtype, samples};
  impl_->require_sound(question);
  return impl_->run(impl_->exchange(question), deadline);
}

Figures Client::figures(Deadline deadline) {
  impl_->connect(deadline);
  return impl_->run(impl_->fetch_figures(), deadline);
}

}  // namespace bimetal::serving
