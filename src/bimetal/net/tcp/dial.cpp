#include "bimetal/net/tcp/dial.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/authenticate.h"
#include "bimetal/net/tcp/tcp_mesh_impl.h"

namespace bimetal::net {
namespace {

using asio::ip::tcp;
using Addresses = std::vector<tcp::endpoint>;

constexpr std::chrono::milliseconds kPollInterval{5};

/// Others are tried last: a rank that meets the store by a link-local address would publish one,
/// which means nothing to the rest without the name of their own interface.
bool reaches_beyond_one_link(const tcp::endpoint& endpoint) {
  return !endpoint.address().is_v6() || !endpoint.address().to_v6().is_link_local();
}

/// A value and not an exception: what two threads have of one they would both let go of.
struct Resolved {
  std::error_code error;
  Addresses addresses;  ///< at least one, without an error
};

Resolved resolve_here(const Endpoint& endpoint) noexcept {
  Resolved resolved;
  try {
    asio::io_context io;
    tcp::resolver resolver(io);
    const auto found =
        resolver.resolve(endpoint.host, std::to_string(endpoint.port), resolved.error);
    for (const auto& entry : found) resolved.addresses.push_back(entry.endpoint());
    std::stable_partition(resolved.addresses.begin(), resolved.addresses.end(),
                          reaches_beyond_one_link);
    if (!resolved.error && resolved.addresses.empty()) resolved.error = asio::error::host_not_found;
  } catch (const std::exception&) {
    resolved.error = std::make_error_code(std::errc::not_enough_memory);
  }
  return resolved;
}

std::future<Resolved> resolve_elsewhere(const Endpoint& endpoint) {
  std::promise<Resolved> promise;
  auto future = promise.get_future();
  std::thread([promise = std::move(promise), endpoint]() mutable {
    promise.set_value(resolve_here(endpoint));
  }).detach();
  return future;
}

/// Empty where the host is a name.
Addresses as_numbers(const Endpoint& endpoint) {
  std::error_code error;
  const auto address = asio::ip::make_address(endpoint.host, error);
  if (error) return {};
  if (address.is_v6() && address.to_v6().is_link_local() && address.to_v6().scope_id() == 0) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("{} is a link-local address, of which every interface has its own; name "
                    "one of this machine's interfaces, as in [fe80::1%eth0]:29500, or use "
                    "another address",
                    endpoint.host));
  }
  return {tcp::endpoint(address, endpoint.port)};
}

bool ready(const std::future<Resolved>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

asio::awaitable<Addresses> resolve(Endpoint endpoint, Deadline deadline) {
  Addresses addresses = as_numbers(endpoint);
  if (!addresses.empty()) co_return addresses;
  auto future = resolve_elsewhere(endpoint);
  asio::steady_timer timer(co_await asio::this_coro::executor);
  while (!ready(future)) {
    if (deadline.expired()) throw std::system_error(asio::error::timed_out);
    timer.expires_after(kPollInterval);
    co_await timer.async_wait(asio::use_awaitable);
  }
  auto resolved = future.get();
  if (resolved.error) throw std::system_error(resolved.error, "resolve");
  co_return std::move(resolved.addresses);
}

tcp::endpoint resolve_to_listen(const Endpoint& endpoint, Deadline deadline) {
  if (const auto addresses = as_numbers(endpoint); !addresses.empty()) return addresses.front();
  auto future = resolve_elsewhere(endpoint);
  if (future.wait_until(deadline.time()) != std::future_status::ready) {
    throw Error(ErrorCode::System, fmt::format("cannot listen on {}: the system's name service "
                                               "does not answer; use a numeric address",
                                               endpoint.host));
  }
  const auto resolved = future.get();
  if (!resolved.error) return resolved.addresses.front();
  throw Error(ErrorCode::System,
              fmt::format("cannot listen on {}: {}", endpoint.host, resolved.error.message()));
}

namespace {

using asio::ip::tcp;

constexpr std::chrono::milliseconds kFirstPause{10};
constexpr std::chrono::milliseconds kLongestPause{250};
// A server that accepts and stays silent must not eat the whole budget.
constexpr std::chrono::seconds kAnswerTimeout{5};

asio::awaitable<std::vector<tcp::endpoint>> resolve_all(const DialRequest& request) {
  std::vector<tcp::endpoint> all;
  std::exception_ptr unknown;
  for (const Endpoint& address : request.addresses) {
    try {
      const auto some = co_await resolve(address, request.deadline);
      all.insert(all.end(), some.begin(), some.end());
    } catch (const std::system_error&) {
      unknown = std::current_exception();
    }
  }
  if (all.empty() && unknown) std::rethrow_exception(unknown);
  co_return all;
}

asio::awaitable<SessionKeys> authenticate(const DialRequest& request, const HandshakeKey& key,
                                          tcp::socket& socket) {
  Watchdog watchdog(socket, min(request.deadline, Deadline::after(kAnswerTimeout)));
  try {
    const auto keys = co_await authenticate_as_client(socket, key, request.hello, request.name);
    // After a pause of this process the last answer and the end of its time are both there.
    if (!watchdog.barked()) co_return keys;
  } catch (const std::system_error&) {
    if (!watchdog.barked()) throw;
  }
  throw std::system_error(asio::error::timed_out);
}

/// Keeps the results of one round over the addresses, and judges whether to go on.
class Round {
 public:
  void met(std::exception_ptr error, ErrorCode code) {
    ++errors_;
    if (!error_ || code == ErrorCode::Unauthorized) error_ = std::move(error);
    refused_ = refused_ || code == ErrorCode::Unauthorized;
  }
  void rethrow_if_hopeless(std::size_t addresses) const {
    if (refused_ || (error_ && errors_ == addresses)) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
  std::size_t errors_ = 0;
  bool refused_ = false;
};

/// One round over all addresses of the server; an empty result leaves the reason in `trouble`.
/// The handshakes come one after the other, so that the server never holds two connections of ours.
asio::awaitable<std::optional<DialedConnection>> try_once(const DialRequest& request,
                                                          const HandshakeKey& key,
                                                          std::string& trouble) {
  std::vector<tcp::endpoint> addresses;
  try {
    addresses = co_await resolve_all(request);
  } catch (const std::system_error& error) {
    trouble = error.code().message();
    co_return std::nullopt;
  }
  Round round;
  ConnectRace race(co_await asio::this_coro::executor, addresses);
  while (auto winner = co_await race.next(request.deadline)) {
    if (request.on_answer) request.on_answer();
    try {
      const SessionKeys keys = co_await authenticate(request, key, winner->socket);
      co_return DialedConnection{std::move(winner->socket), keys};
    } catch (const std::system_error& error) {
      race.reject(winner->address, error.code().message());
    } catch (const Error& error) {
      race.reject(winner->address, error.what());
      round.met(std::current_exception(), error.code());
    }
  }
  round.rethrow_if_hopeless(addresses.size());
  trouble = race.troubles();
  co_return std::nullopt;
}

}  // namespace

asio::awaitable<DialedConnection> dial(DialRequest request) {
  const HandshakeKey key(request.token);
  asio::steady_timer timer(co_await asio::this_coro::executor);
  std::chrono::milliseconds pause = kFirstPause;
  std::string trouble = "no time was left";
  while (!request.deadline.expired()) {
    const std::string before = trouble;
    auto connection = co_await try_once(request, key, trouble);
    if (connection) co_return std::move(*connection);
    if (trouble != before && request.on_trouble) request.on_trouble(trouble);
    timer.expires_at(min(request.deadline, Deadline::after(pause)).time());
    co_await timer.async_wait(asio::use_awaitable);
    pause = std::min(pause * 2, kLongestPause);
  }
  throw Error(ErrorCode::Timeout,
              fmt::format("{} could not be reached in time (last try: {}); check that it runs, "
                          "that address and port are right, and that no firewall is in the way",
                          request.name, trouble));
}

}  // namespace bimetal::net
