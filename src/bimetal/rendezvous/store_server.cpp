#include "bimetal/rendezvous/store_server.h"

#include <fmt/format.h>

#include <array>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <charconv>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/wire.h"
#include "bimetal/net/link/session.h"
#include "bimetal/net/tcp/handlers.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::rendezvous {

asio::awaitable<StoreMessage> read_store_message(net::ByteReader& reader, net::Seal& seal) {
  StoreHeader bytes;
  co_await reader.fill(bytes);
  StoreHeaderFields fields = decode_store_header(bytes, seal);
  std::string name(fields.key_bytes, '\0');
  co_await reader.fill(std::as_writable_bytes(std::span(name)));
  std::string value(fields.value_bytes, '\0');
  co_await reader.fill(std::as_writable_bytes(std::span(value)));
  co_return complete_store_message(std::move(fields), std::move(name), std::move(value), seal);
}

Outbox::Outbox(asio::ip::tcp::socket& socket, const net::Direction& direction)
    : writer_(socket, direction.cipher),
      seal_(direction.seal),
      filled_(socket.get_executor(), asio::steady_timer::time_point::max()),
      drained_(socket.get_executor(), asio::steady_timer::time_point::max()) {}

void Outbox::push(StoreMessage message) {
  bytes_ += message.value->size();
  messages_.push_back(std::move(message));
  filled_.cancel();
}

asio::awaitable<std::error_code> Outbox::run() {
  std::error_code error, woken;
  while (!closed_ && !error) {
    if (messages_.empty()) {
      co_await filled_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
      continue;
    }
    const StoreMessage message = std::move(messages_.front());
    messages_.pop_front();
    const StoreHeader header = encode_store_header(message, seal_);
    const std::array<asio::const_buffer, 3> buffers{asio::buffer(header), asio::buffer(message.key),
                                                    asio::buffer(*message.value)};
    co_await writer_.write(buffers, error);
    bytes_ -= message.value->size();
    drained_.cancel();
  }
  co_return error;
}

asio::awaitable<void> Outbox::wait_below(std::size_t limit) {
  std::error_code woken;
  while (bytes_ > limit && !closed_) {
    co_await drained_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
}

void Outbox::close() {
  closed_ = true;
  filled_.cancel();
  drained_.cancel();
}

namespace {

constexpr std::size_t kMaxWaiting = 4096;
// A client that asks but does not read is not read from beyond this.
constexpr std::size_t kMaxUnreadReplies = 4 * kMaxValueBytes;

}  // namespace

void StoreTable::set(const std::string& key, std::shared_ptr<const std::string> value) {
  values_[key] = value;
  const auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  const std::vector<Waiter> waiters = std::move(found->second);
  waiters_.erase(found);
  for (const Waiter& waiter : waiters) {
    if (const auto session = waiter.session.lock()) session->deliver(waiter.request, value);
  }
}

std::shared_ptr<const std::string> StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

bool StoreTable::add(const std::string& key, std::int64_t delta, std::int64_t& sum) {
  sum = 0;
  if (const auto value = find(key)) {
    const char* const end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, sum);
    if (error != std::errc() || stop != end) return false;
  }
  // Wraps around instead of overflowing.
  sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum) +
                                  static_cast<std::uint64_t>(delta));
  set(key, std::make_shared<const std::string>(std::to_string(sum)));
  return true;
}

void StoreTable::await(const std::string& key, std::weak_ptr<StoreSession> session,
                       std::uint64_t request) {
  auto& waiters = waiters_[key];
  // Waiters that have left are dropped here, or a client that polls with short deadlines would
  // leave one behind each time.
  std::erase_if(waiters, [](const Waiter& waiter) {
    const auto alive = waiter.session.lock();
    return !alive || !alive->waits_for(waiter.request);
  });
  waiters.push_back({std::move(session), request});
}

StoreSession::StoreSession(asio::ip::tcp::socket connected, const net::SessionKeys& keys,
                           StoreTable& table)
    : Session(std::move(connected), keys, net::Side::server),
      table_(table),
      outbox_(socket(), net::sent_by(net::Side::server, keys)) {}

asio::awaitable<void> StoreSession::read_messages() {
  while (is_open()) {
    handle(co_await read_store_message(reader(), incoming()));
    co_await outbox_.wait_below(kMaxUnreadReplies);
  }
}

void StoreSession::on_ended(const Error& why) {
  if (why.code() == ErrorCode::PeerLost) {
    log(LogLevel::debug, "store: {} has left: {}", remote(), why.what());
  } else {
    log(LogLevel::warning, "store: closed the connection from {}: {}", remote(), why.what());
  }
}

void StoreSession::handle(StoreMessage request) {
  if (request.call == StoreCall::Cancel) {
    waiting_.erase(request.request);
    return;
  }
  // It also makes a replayed request useless.
  if (request.request <= last_request_) {
    throw Error(ErrorCode::CorruptData, "a request number was used twice");
  }
  last_request_ = request.request;
  StoreMessage reply;
  reply.request = request.request;
  switch (request.call) {
    case StoreCall::Set: table_.set(request.key, request.value); break;
    case StoreCall::Get: get(request, std::move(reply)); return;
    case StoreCall::TryGet:
      if (auto value = table_.find(request.key)) {
        reply.value = std::move(value);
      } else {
        reply.status = StoreStatus::Absent;
      }
      break;
    case StoreCall::Add:
      if (!table_.add(request.key, request.number, reply.number)) {
        reply.status = StoreStatus::NotANumber;
      }
      break;
    default:
      throw Error(ErrorCode::CorruptData,
                  fmt::format("unknown request {}", static_cast<int>(request.call)));
  }
  outbox_.push(std::move(reply));
}

void StoreSession::get(const StoreMessage& request, StoreMessage reply) {
  if (auto value = table_.find(request.key)) {
    reply.value = std::move(value);
  } else if (waiting_.size() >= kMaxWaiting) {
    reply.status = StoreStatus::TooMany;
  } else {
    waiting_.emplace(request.request, request.key);
    table_.await(request.key, std::static_pointer_cast<StoreSession>(shared_from_this()),
                 request.request);
    return;
  }
  outbox_.push(std::move(reply));
}

void StoreSession::deliver(std::uint64_t request, std::shared_ptr<const std::string> value) {
  if (waiting_.erase(request) == 0 || !is_open()) return;
  StoreMessage reply;
  reply.request = request;
  reply.value = std::move(value);
  outbox_.push(std::move(reply));
}

struct StoreServer::Impl {
  Impl(const net::Endpoint& listen, const net::Token& token, net::Encryption encryption,
       const std::string& fault_key)
      : listener(io, listen, listener_options(token, encryption, fault_key)),
        bound(listener.endpoint()) {
    listener.start();
    thread = std::thread([this] {
      net::run_handlers(io, [](const Error& error) {
        log(LogLevel::error, "the rendezvous store has failed to answer: {}", error.what());
      });
    });
  }

  ~Impl() {
    asio::post(io, [this] {
      listener.stop();
      for (const auto& session : sessions) {
        if (const auto alive = session.lock()) alive->close();
      }
    });
    thread.join();  // the thread ends with the last session
  }

  net::ListenerOptions listener_options(const net::Token& token, net::Encryption encryption,
                                        const std::string& fault_key) {
    auto options = net::listener_options(net::Service::Store, {token, encryption, {}});
    options.on_connection = [this](asio::ip::tcp::socket socket,
                                   const net::AuthenticatedClient& client) {
      std::erase_if(sessions, [](const auto& session) { return session.expired(); });
      const auto session = std::make_shared<StoreSession>(std::move(socket), client.keys, table);
      sessions.push_back(session);
      session->start();
    };
    if (!fault_key.empty()) {
      options.on_wrong_token = [this, fault_key](const std::string& remote) {
        if (!table.find(fault_key)) table.set(fault_key, wrong_token_at(remote));
      };
    }
    return options;
  }

  static std::shared_ptr<const std::string> wrong_token_at(const std::string& remote) {
    WireWriter out;
    write_error(out, {ErrorCode::Unauthorized,
                      fmt::format("a process at {} has another token than this job: give all ranks "
                                  "the same (--token-file, BIMETAL_TOKEN_FILE)",
                                  remote)});
    const auto& bytes = out.bytes();
    return std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes.data()),
                                               bytes.size());
  }

  asio::io_context io{1};
  StoreTable table;
  std::vector<std::weak_ptr<StoreSession>> sessions;
  net::Listener listener;
  const net::Endpoint bound;
  std::thread thread;
};

StoreServer::StoreServer(const net::Endpoint& listen, const net::Token& token,
                         net::Encryption encryption, const std::string& fault_key)
    : impl_(std::make_unique<Impl>(listen, token, encryption, fault_key)) {}

StoreServer::~StoreServer() = default;

net::Endpoint StoreServer::endpoint() const {
  return impl_->bound;
}

}  // namespace bimetal::rendezvous
