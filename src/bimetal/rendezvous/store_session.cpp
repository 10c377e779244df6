#include "bimetal/rendezvous/store_session.h"

#include <fmt/format.h>

#include <charconv>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"

namespace bimetal::rendezvous {
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
  // Also what makes a replayed request useless.
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

}  // namespace bimetal::rendezvous
