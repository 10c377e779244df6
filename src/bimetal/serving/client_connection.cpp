#include "bimetal/serving/client_connection.h"

#include <fmt/format.h>

#include <system_error>

#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/spawn.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::serving {
namespace {

using Clock = std::chrono::steady_clock;

/// A server says something every 250 ms while a client waits.
constexpr std::chrono::seconds kSilence{10};

asio::awaitable<void> write_frames(std::shared_ptr<Greeted> wire) {
  co_await wire->writer.run();  // what has failed is noticed by who reads
}

/// The next message; heartbeats are passed over.
asio::awaitable<ServerMessage> next_message(Wire& wire) {
  ServerMessage message;
  do {
    message.header = co_await wire.next_header();
  } while (message.header.kind == net::FrameKind::Heartbeat);
  const bool answer = message.kind() == MessageKind::predicted;
  if (message.header.payload_bytes > (answer ? kMaxRequestBytes : kMaxBodyBytes)) {
    throw Error(ErrorCode::CorruptData, "it announces more bytes than an answer can have");
  }
  message.body.resize(message.header.payload_bytes);
  if (const auto error = co_await wire.receive(message.body)) throw std::system_error(error);
  net::check_payload(message.header, message.body, wire.incoming);
  co_return message;
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

std::string ClientConnection::name() const {
  return fmt::format("the server of predictions at {}", net::to_string(address_));
}

void ClientConnection::disconnect() {
  if (wire_) {
    wire_->close();
    wire_.reset();
  }
  // Coroutines that wait on the socket end now; others, which connect, by their deadline.
  io_.restart();
  io_.run();
}

bool ClientConnection::silent() const {
  return wire_ && wire_->heard + kSilence < Clock::now();
}

void ClientConnection::await_answers() {
  wire_->heard = Clock::now();
}

void ClientConnection::rethrow(const std::exception_ptr& failure, bool in_time, bool silent) const {
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

asio::awaitable<ServerMessage> ClientConnection::next_answer() {
  const auto own = wire_;
  ServerMessage message;
  try {
    message = co_await next_message(*own);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} sent bad data: {}", name(), error.what()));
  }
  if (message.kind() != MessageKind::refused) co_return message;
  const Error refusal = decode_refused(message.body);
  if (refusal.code() != ErrorCode::CorruptData) throw refusal;
  throw Error(refusal.code(), fmt::format("{} received bad data: {}", name(), refusal.what()));
}

void ClientConnection::answered_amiss() const {
  throw Error(ErrorCode::CorruptData, fmt::format("{} answers what was not asked", name()));
}

std::uint64_t ClientConnection::send(MessageKind kind, std::uint64_t count, comm::DType dtype,
                                     std::span<const std::byte> bytes) {
  net::FrameHeader header;
  header.operation = static_cast<std::uint8_t>(kind);
  header.sequence = ++sequence_;
  header.dtype = static_cast<std::uint8_t>(dtype);
  header.count = count;
  header.sealed = !bytes.empty();
  wire_->writer.push(header, bytes, {});
  return sequence_;
}

asio::awaitable<bool> ClientConnection::greet(Deadline deadline) {
  net::DialRequest request{.addresses = {address_},
                           .name = name(),
                           .token = options_.token,
                           .hello = {},
                           .deadline = deadline};
  request.hello.service = net::Service::Predictions;
  request.hello.encrypted = options_.encryption == net::Encryption::on;
  auto dialed = co_await net::dial(std::move(request));
  wire_ = std::make_shared<Greeted>(std::move(dialed.socket), dialed.keys);
  const auto own = wire_;
  // Who reads then finds it closed.
  net::spawn(io_, write_frames(own), [own](const Error&) { own->close(); });
  const auto message = co_await next_answer();
  if (message.kind() != MessageKind::welcome) {
    throw Error(ErrorCode::CorruptData, fmt::format("{} does not greet", name()));
  }
  own->facts = decode_model_facts(message.body);
  co_return true;
}

void ClientConnection::connect(Deadline deadline) {
  if (wire_ && still_there(wire_->socket)) return;
  disconnect();
  address_ = options_.server;
  sequence_ = 0;
  try {
    run(greet(deadline), deadline);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::ProtocolMismatch) throw;
    ask_directory(error, deadline);
    run(greet(deadline), deadline);
  }
}

/// What answers there may be the directory of a job, which knows who serves its predictions.
void ClientConnection::ask_directory(const Error& refusal, Deadline deadline) {
  std::unique_ptr<rendezvous::Store> directory;
  try {
    directory =
        rendezvous::connect_store(options_.server, options_.token, deadline, options_.encryption);
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
                            net::to_string(options_.server)));
  }
  address_ = net::parse_endpoint(*where);
}

}  // namespace bimetal::serving
