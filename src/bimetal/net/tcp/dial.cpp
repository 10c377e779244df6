#include "bimetal/net/tcp/dial.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/authenticate.h"
#include "bimetal/net/tcp/connect_race.h"
#include "bimetal/net/tcp/resolve.h"
#include "bimetal/net/tcp/watchdog.h"

namespace bimetal::net {
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
    co_return co_await authenticate_as_client(socket, key, request.hello, request.name);
  } catch (const std::system_error&) {
    if (watchdog.barked()) throw std::system_error(asio::error::timed_out);
    throw;
  }
}

/// Keeps what one round over the addresses has met, and judges whether to go on.
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
