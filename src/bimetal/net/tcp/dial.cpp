#include "bimetal/net/tcp/dial.h"

#include <fmt/format.h>

#include <algorithm>
#include <asio/steady_timer.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/authenticate.h"
#include "bimetal/net/tcp/resolve.h"
#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/watchdog.h"

namespace bimetal::net {
namespace {

constexpr std::chrono::milliseconds kFirstPause{10};
constexpr std::chrono::milliseconds kLongestPause{250};
// Of one try: a lost SYN or a server that accepts and stays silent must not eat the whole budget.
constexpr std::chrono::seconds kTryTimeout{5};

/// A connection from a port to itself, which TCP makes when the free port that the system picks for
/// us happens to be the one we call and nobody listens there.
bool talks_to_itself(const tcp::socket& socket) {
  std::error_code error;
  const auto local = socket.local_endpoint(error);
  return !error && local == socket.remote_endpoint(error);
}

asio::awaitable<DialedConnection> try_address(const DialRequest& request, const HandshakeKey& key,
                                              tcp::endpoint address) {
  tcp::socket socket = open_socket(co_await asio::this_coro::executor, address.protocol());
  SessionKeys keys;
  {
    Watchdog watchdog(socket, min(request.deadline, Deadline::after(kTryTimeout)));
    try {
      co_await socket.async_connect(address, asio::use_awaitable);
      if (talks_to_itself(socket)) throw std::system_error(asio::error::connection_refused);
      keys = co_await authenticate_as_client(socket, key, request.hello, request.name);
    } catch (const std::system_error&) {
      if (watchdog.barked()) throw std::system_error(asio::error::timed_out);
      throw;
    }
  }
  co_return DialedConnection{std::move(socket), keys};
}

/// One round over all addresses of the server; an empty result leaves the reason in `trouble`.
asio::awaitable<std::optional<DialedConnection>> try_once(const DialRequest& request,
                                                          const HandshakeKey& key,
                                                          std::string& trouble) {
  try {
    const auto addresses = co_await resolve(request.server, request.deadline);
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      try {
        co_return co_await try_address(request, key, addresses[i]);
      } catch (const std::system_error&) {
        if (i + 1 == addresses.size()) throw;
      }
    }
  } catch (const std::system_error& error) {
    trouble = error.code().message();
  }
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
