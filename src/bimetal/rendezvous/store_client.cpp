#include <fmt/format.h>

#include <algorithm>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/link/session.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/rendezvous/store_server.h"

namespace bimetal::rendezvous {
namespace {

/// The connection, and the calls whose answers have not come.
class ClientSession final : public net::Session {
 public:
  ClientSession(net::DialedConnection connection, std::string server);

  /// Thread-safe; anything else belongs to the session's thread.
  StoreMessage call(StoreMessage request, Deadline deadline);
  const std::string& local_address() const noexcept { return local_address_; }

 private:
  asio::awaitable<void> read_messages() override;
  asio::awaitable<std::error_code> send_messages() override { return outbox_.run(); }
  void drop_unsent(const Error&) override { outbox_.close(); }
  void on_ended(const Error& why) override;

  std::uint64_t submit(StoreMessage request);
  void send(StoreMessage message);
  void accept_reply(StoreMessage reply);

  const std::string server_;
  const std::string local_address_;
  Outbox outbox_;

  std::mutex mutex_;  ///< guards the members below
  std::condition_variable changed_;
  std::uint64_t last_request_ = 0;
  std::map<std::uint64_t, std::optional<StoreMessage>> pending_;
  std::optional<Error> lost_;  ///< how the connection has ended
};

/// A thread of its own carries the messages, so that many callers may wait at once, each to its own
/// deadline.
class StoreClient final : public Store {
 public:
  StoreClient(std::unique_ptr<asio::io_context> io, net::DialedConnection connection,
              std::string server);
  ~StoreClient() override;

  void set(std::string_view key, std::string_view value, Deadline deadline) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::optional<std::string> try_get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) override;
  std::string local_address() const override { return session_->local_address(); }

 private:
  std::unique_ptr<asio::io_context> io_;
  std::shared_ptr<ClientSession> session_;
  std::thread thread_;
};

std::string local_address_of(const asio::ip::tcp::socket& socket) {
  std::error_code error;
  const auto local = socket.local_endpoint(error);
  return error ? std::string() : local.address().to_string();
}

ClientSession::ClientSession(net::DialedConnection connection, std::string server)
    : Session(std::move(connection.socket), connection.keys, net::Side::client),
      server_(std::move(server)),
      local_address_(local_address_of(socket())),
      outbox_(socket(), net::sent_by(net::Side::client, connection.keys)) {}

StoreClient::StoreClient(std::unique_ptr<asio::io_context> io, net::DialedConnection connection,
                         std::string server)
    : io_(std::move(io)),
      session_(std::make_shared<ClientSession>(std::move(connection), std::move(server))) {
  io_->restart();
  session_->start();
  thread_ = std::thread(
      [this] { net::run_handlers(*io_, [this](const Error& error) { session_->refuse(error); }); });
}

StoreClient::~StoreClient() {
  asio::post(*io_, [this] { session_->close(); });
  thread_.join();
}

void StoreClient::set(std::string_view key, std::string_view value, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::Set;
  request.key = key;
  request.value = std::make_shared<const std::string>(value);
  session_->call(std::move(request), deadline);
}

std::string StoreClient::get(std::string_view key, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::Get;
  request.key = key;
  return *session_->call(std::move(request), deadline).value;
}

std::optional<std::string> StoreClient::try_get(std::string_view key, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::TryGet;
  request.key = key;
  const StoreMessage reply = session_->call(std::move(request), deadline);
  if (reply.status == StoreStatus::Absent) return std::nullopt;
  return *reply.value;
}

std::int64_t StoreClient::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::Add;
  request.key = key;
  request.number = delta;
  return session_->call(std::move(request), deadline).number;
}

void check_limits(const StoreMessage& request) {
  if (request.key.size() <= kMaxKeyBytes && request.value->size() <= kMaxValueBytes) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the store takes keys of up to {} and values of up to {} bytes, not {} "
                          "and {}",
                          kMaxKeyBytes, kMaxValueBytes, request.key.size(), request.value->size()));
}

void check_status(const StoreMessage& reply, const std::string& key) {
  if (reply.status == StoreStatus::Ok || reply.status == StoreStatus::Absent) return;
  throw Error(ErrorCode::InvalidArgument,
              reply.status == StoreStatus::NotANumber
                  ? fmt::format("store key \"{}\" holds no number to add to", key)
                  : fmt::format("too many keys are waited for at once; \"{}\" is one more", key));
}

StoreMessage ClientSession::call(StoreMessage request, Deadline deadline) {
  check_limits(request);
  const std::string key = request.key;
  const StoreCall what = request.call;
  const std::uint64_t number = submit(std::move(request));

  std::unique_lock lock(mutex_);
  const auto answered = [&] { return pending_.at(number).has_value() || lost_; };
  changed_.wait_until(lock, deadline.time(), answered);
  std::optional<StoreMessage> reply = std::move(pending_.at(number));
  pending_.erase(number);
  if (reply) {
    check_status(*reply, key);
    return std::move(*reply);
  }
  if (lost_) throw *lost_;
  lock.unlock();
  StoreMessage cancel;
  cancel.call = StoreCall::Cancel;
  cancel.request = number;
  send(std::move(cancel));
  throw Error(ErrorCode::Timeout,
              what == StoreCall::Get
                  ? fmt::format("no process has set \"{}\" in {} in time", key, server_)
                  : fmt::format("{} did not answer in time (key \"{}\")", server_, key));
}

/// Numbers grow in the order in which requests are sent, so one lock covers both.
std::uint64_t ClientSession::submit(StoreMessage request) {
  std::lock_guard lock(mutex_);
  if (lost_) throw *lost_;
  const std::uint64_t number = request.request = ++last_request_;
  pending_.emplace(number, std::nullopt);
  send(std::move(request));
  return number;
}

void ClientSession::send(StoreMessage message) {
  asio::post(socket().get_executor(),
             [this, message]() mutable { outbox_.push(std::move(message)); });
}

asio::awaitable<void> ClientSession::read_messages() {
  for (;;) accept_reply(co_await read_store_message(reader(), incoming()));
}

void ClientSession::accept_reply(StoreMessage reply) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(reply.request);
  if (found == pending_.end()) return;  // its caller's deadline has passed
  found->second = std::move(reply);
  changed_.notify_all();
}

/// Ends every call, now and later; the thread then runs out of work.
void ClientSession::on_ended(const Error& why) {
  const auto text = [&] {
    switch (why.code()) {
      case ErrorCode::PeerLost:
        return fmt::format("{} is gone: {}; the process that serves it has probably ended", server_,
                           why.what());
      case ErrorCode::OutOfMemory: return fmt::format("asking {}: {}", server_, why.what());
      default: return fmt::format("{} sent bad data: {}", server_, why.what());
    }
  }();
  std::lock_guard lock(mutex_);
  lost_ = Error(why.code(), text);
  changed_.notify_all();
}

std::unique_ptr<Store> connect(const net::Endpoint& server, const net::DialRequest& request) {
  net::require_token_for(server.host, request.token);
  auto io = std::make_unique<asio::io_context>(1);
  std::exception_ptr failure;
  std::optional<net::DialedConnection> connection;
  asio::co_spawn(
      *io, [&]() -> asio::awaitable<void> { connection.emplace(co_await net::dial(request)); },
      [&](std::exception_ptr error) { failure = std::move(error); });
  io->run();
  if (failure) std::rethrow_exception(failure);
  return std::make_unique<StoreClient>(std::move(io), std::move(*connection), request.name);
}

net::DialRequest request_for(const net::Endpoint& server, const net::Token& token,
                             Deadline deadline, net::Encryption encryption) {
  const auto name = fmt::format("the rendezvous store at {}", to_string(server));
  return net::dial_request(net::Service::Store, server, name, {token, encryption, {}}, deadline);
}

}  // namespace

std::unique_ptr<Store> connect_store(const net::Endpoint& server, const net::Token& token,
                                     Deadline deadline, net::Encryption encryption) {
  auto request = request_for(server, token, deadline, encryption);
  request.on_trouble = [name = request.name](const std::string& trouble) {
    log(LogLevel::info, "{}: {}; trying again", name, trouble);
  };
  return connect(server, request);
}

/// A server to which more come at once than it can hear hangs up on some: they try again.
std::unique_ptr<Store> connect_store_at_once(const net::Endpoint& server, const net::Token& token,
                                             Deadline deadline) {
  auto request = request_for(server, token, deadline, net::encryption_from_environment());
  bool answered = false;
  request.on_answer = [&answered] { answered = true; };
  request.on_trouble = [&answered, name = request.name](const std::string& trouble) {
    if (std::exchange(answered, false)) return;
    throw Error(ErrorCode::PeerLost, fmt::format("{}: {}", name, trouble));
  };
  return connect(server, request);
}

std::string PolledStore::get(std::string_view key, Deadline deadline) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongestPause{20};
  for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    if (auto value = try_get(key, deadline)) return *value;
    if (deadline.expired()) {
      throw Error(ErrorCode::Timeout, fmt::format("nobody set '{}' in {}", key, name_));
    }
    std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(pause, deadline.remaining()));
  }
}

}  // namespace bimetal::rendezvous
