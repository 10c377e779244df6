#include <fmt/format.h>

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/spawn.h"
#include "bimetal/rendezvous/outbox.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/rendezvous/store_stream.h"

namespace bimetal::rendezvous {
namespace {

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
  std::string local_address() const override { return local_address_; }

 private:
  using Pending = std::map<std::uint64_t, std::optional<StoreMessage>>;

  StoreMessage call(StoreMessage request, Deadline deadline);
  std::uint64_t submit(StoreMessage request);
  void cancel(std::uint64_t request);
  asio::awaitable<void> read_replies();
  asio::awaitable<void> write_requests();
  void accept_reply(StoreMessage reply);
  Error gone(const std::string& why) const;
  void lose(const Error& error);

  std::unique_ptr<asio::io_context> io_;
  asio::ip::tcp::socket socket_;
  net::Seal incoming_;
  const std::string server_;
  const std::string local_address_;
  net::ByteReader reader_;
  Outbox outbox_;

  std::mutex mutex_;  ///< guards what follows
  std::condition_variable changed_;
  std::uint64_t last_request_ = 0;
  Pending pending_;
  std::optional<Error> lost_;  ///< how the connection has ended

  std::thread thread_;
};

std::string local_address_of(const asio::ip::tcp::socket& socket) {
  std::error_code error;
  const auto local = socket.local_endpoint(error);
  return error ? std::string() : local.address().to_string();
}

StoreClient::StoreClient(std::unique_ptr<asio::io_context> io, net::DialedConnection connection,
                         std::string server)
    : io_(std::move(io)),
      socket_(std::move(connection.socket)),
      incoming_(connection.keys.server_to_client),
      server_(std::move(server)),
      local_address_(local_address_of(socket_)),
      reader_(socket_, connection.keys.cipher_to_client()),
      outbox_(socket_, connection.keys.client_to_server, connection.keys.cipher_to_server()) {
  std::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::keep_alive(true), ignored);
  io_->restart();
  const auto end_it = [this](const Error& error) { lose(error); };
  net::spawn(*io_, read_replies(), end_it);
  net::spawn(*io_, write_requests(), end_it);
  thread_ = std::thread([this] { io_->run(); });
}

StoreClient::~StoreClient() {
  asio::post(*io_, [this] { lose(gone("this side has closed the connection")); });
  thread_.join();
}

void StoreClient::set(std::string_view key, std::string_view value, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::Set;
  request.key = key;
  request.value = std::make_shared<const std::string>(value);
  call(std::move(request), deadline);
}

std::string StoreClient::get(std::string_view key, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::Get;
  request.key = key;
  return *call(std::move(request), deadline).value;
}

std::optional<std::string> StoreClient::try_get(std::string_view key, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::TryGet;
  request.key = key;
  const StoreMessage reply = call(std::move(request), deadline);
  if (reply.status == StoreStatus::Absent) return std::nullopt;
  return *reply.value;
}

std::int64_t StoreClient::add(std::string_view key, std::int64_t delta, Deadline deadline) {
  StoreMessage request;
  request.call = StoreCall::Add;
  request.key = key;
  request.number = delta;
  return call(std::move(request), deadline).number;
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

StoreMessage StoreClient::call(StoreMessage request, Deadline deadline) {
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
  cancel(number);
  throw Error(ErrorCode::Timeout,
              what == StoreCall::Get
                  ? fmt::format("no process has set \"{}\" in {} in time", key, server_)
                  : fmt::format("{} did not answer in time (key \"{}\")", server_, key));
}

/// Numbers grow in the order in which requests are sent, so one lock covers both.
std::uint64_t StoreClient::submit(StoreMessage request) {
  std::lock_guard lock(mutex_);
  if (lost_) throw *lost_;
  request.request = ++last_request_;
  pending_.emplace(request.request, std::nullopt);
  asio::post(*io_, [this, request]() mutable { outbox_.push(std::move(request)); });
  return request.request;
}

void StoreClient::cancel(std::uint64_t request) {
  StoreMessage message;
  message.call = StoreCall::Cancel;
  message.request = request;
  asio::post(*io_, [this, message]() mutable { outbox_.push(std::move(message)); });
}

asio::awaitable<void> StoreClient::read_replies() {
  try {
    for (;;) accept_reply(co_await read_store_message(reader_, incoming_));
  } catch (const std::system_error& error) {
    lose(gone(error.code() == asio::error::eof ? "it closed the connection"
                                               : error.code().message()));
  } catch (const Error& error) {
    lose(Error(error.code(), fmt::format("{} sent bad data: {}", server_, error.what())));
  } catch (const std::exception& error) {
    lose(Error(ErrorCode::Internal,
               fmt::format("while receiving from {}: {}", server_, error.what())));
  }
}

asio::awaitable<void> StoreClient::write_requests() {
  co_await outbox_.run();
  lose(gone("it does not take requests any more"));
}

void StoreClient::accept_reply(StoreMessage reply) {
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(reply.request);
  if (found == pending_.end()) return;  // its caller's deadline has passed
  found->second = std::move(reply);
  changed_.notify_all();
}

Error StoreClient::gone(const std::string& why) const {
  return Error(
      ErrorCode::PeerLost,
      fmt::format("{} is gone: {}; the process that serves it has probably ended", server_, why));
}

/// Ends every call, now and later; the thread then runs out of work.
void StoreClient::lose(const Error& error) {
  std::error_code ignored;
  socket_.close(ignored);
  outbox_.close();
  std::lock_guard lock(mutex_);
  if (!lost_) lost_ = error;
  changed_.notify_all();
}

}  // namespace

std::unique_ptr<Store> connect_store(const net::Endpoint& server, const net::Token& token,
                                     Deadline deadline, net::Encryption encryption) {
  net::require_token_for(server.host, token);
  const std::string name = fmt::format("the rendezvous store at {}", to_string(server));
  net::DialRequest request{{server}, name, token, {}, deadline};
  request.hello.service = net::Service::Store;
  request.hello.encrypted = encryption == net::Encryption::on;
  request.on_trouble = [&name](const std::string& trouble) {
    log(LogLevel::info, "{}: {}; trying again", name, trouble);
  };

  auto io = std::make_unique<asio::io_context>(1);
  std::exception_ptr failure;
  std::optional<net::DialedConnection> connection;
  asio::co_spawn(
      *io, [&]() -> asio::awaitable<void> { connection.emplace(co_await net::dial(request)); },
      [&](std::exception_ptr error) { failure = std::move(error); });
  io->run();
  if (failure) std::rethrow_exception(failure);
  return std::make_unique<StoreClient>(std::move(io), std::move(*connection), name);
}

}  // namespace bimetal::rendezvous
