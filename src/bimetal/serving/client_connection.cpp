#include "bimetal/serving/client_connection.h"

#include <fmt/format.h>

#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <system_error>

#include "bimetal/base/log.h"
#include "bimetal/net/link/session.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::serving {
namespace {

/// A server says something every 250 ms while a client waits.
constexpr std::chrono::seconds kSilence{10};

/// A server that begins just now is waited for. Later nobody is there, whatever an answer may take.
constexpr std::chrono::seconds kReach{15};
/// So long nothing is said of it.
constexpr std::chrono::seconds kQuiet{2};

/// Messages that may lie here unread: pieces of a text come in bursts to a slow reader, but nobody
/// is sent more than a text has.
constexpr std::size_t kMostUnread = 4096;

}  // namespace

ClientSession::ClientSession(asio::ip::tcp::socket connected, const net::SessionKeys& keys)
    : FrameSession(std::move(connected), keys, net::Side::client, {}),
      arrived_(socket().get_executor(), asio::steady_timer::time_point::max()) {}

asio::awaitable<void> ClientSession::read_messages() {
  while (is_open()) {
    ServerMessage message;
    message.header = co_await next_frame();
    const bool answer = message.kind() == MessageKind::predicted;
    if (message.header.payload_bytes > (answer ? kMaxRequestBytes : kMaxBodyBytes)) {
      throw Error(ErrorCode::CorruptData, "it announces more bytes than an answer can have");
    }
    if (messages_.size() >= kMostUnread) {
      throw Error(ErrorCode::CorruptData, "it says more than was asked for");
    }
    message.body.resize(message.header.payload_bytes);
    co_await receive(message.header, message.body);
    messages_.push_back(std::move(message));
    arrived_.cancel();
  }
}

asio::awaitable<ServerMessage> ClientSession::next_message() {
  while (messages_.empty()) {
    if (failure_) throw *failure_;
    if (closed()) throw Error(ErrorCode::Aborted, "the connection was closed");
    std::error_code woken;
    co_await arrived_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
  auto message = std::move(messages_.front());
  messages_.pop_front();
  co_return message;
}

void ClientSession::on_ended(const Error& why) {
  failure_ = why;
}

void ClientSession::drop_unsent(const Error& why) {
  FrameSession::drop_unsent(why);
  arrived_.cancel();
}

std::string ClientConnection::name() const {
  return fmt::format("the server of predictions at {}", net::to_string(address_));
}

void ClientConnection::disconnect() {
  if (session_) {
    session_->close();
    session_.reset();
  }
  // Coroutines that wait on the socket end now; others, which connect, by their deadline.
  io_.restart();
  io_.run();
}

/// Whether the connection is of use for the next question.
bool ClientConnection::still_there() {
  if (!session_) return false;
  io_.restart();
  io_.poll();
  return session_->is_open() && session_->has_said_nothing();
}

bool ClientConnection::silent() const {
  return session_ && session_->heard() + kSilence < Clock::now();
}

/// Once for each connect().
void ClientConnection::tell_of_waiting(Clock::time_point since, Deadline deadline) {
  if (session_ || told_ || deadline.expired() || Clock::now() < since + kQuiet) return;
  told_ = true;
  const auto left = std::chrono::round<std::chrono::seconds>(deadline.remaining());
  log(LogLevel::warning, "{} does not answer yet: waiting for it, {} s at most", name(),
      left.count());
}

/// A task that disconnect() runs out may have been woken by an answer just before.
ClientSession& ClientConnection::session() const {
  if (session_) return *session_;
  throw Error(ErrorCode::Aborted, name() + ": the connection was closed");
}

void ClientConnection::await_answers() {
  session().expect();
}

asio::awaitable<ServerMessage> ClientConnection::next_answer() {
  session();
  const auto own = session_;
  ServerMessage message;
  try {
    message = co_await own->next_message();
  } catch (const Error& error) {
    const bool lost = error.code() == ErrorCode::PeerLost;
    throw Error(error.code(),
                fmt::format("{} {}: {}", name(), lost ? "is gone" : "sent bad data", error.what()));
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
  session().writer().push(header, bytes, {});
  return sequence_;
}

asio::awaitable<bool> ClientConnection::greet(Deadline deadline) {
  auto request = net::dial_request(net::Service::Predictions, address_, name(),
                                   {options_.token, options_.encryption, {}}, deadline);
  auto dialed = co_await net::dial(std::move(request));
  if (deadline.expired()) throw Error(ErrorCode::Timeout, name() + " did not answer in time");
  session_ = std::make_shared<ClientSession>(std::move(dialed.socket), dialed.keys);
  session_->start();
  const auto message = co_await next_answer();
  if (message.kind() != MessageKind::welcome) {
    throw Error(ErrorCode::CorruptData, fmt::format("{} does not greet", name()));
  }
  session().facts = decode_model_facts(message.body);
  co_return true;
}

void ClientConnection::connect(Deadline deadline) {
  if (still_there()) return;
  disconnect();
  address_ = options_.server;
  sequence_ = 0;
  const auto reached = min(deadline, Deadline::after(kReach));
  told_ = false;
  try {
    run(greet(reached), reached);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::ProtocolMismatch) throw;
    ask_directory(error, reached);
    run(greet(reached), reached);
  }
}

/// The server there may be the directory of a job, which knows who serves its predictions.
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
