#include "bimetal/net/tcp/sockets.h"

#include <fmt/format.h>

#include <asio/ip/v6_only.hpp>
#include <asio/redirect_error.hpp>
#include <asio/steady_timer.hpp>
#include <asio/use_awaitable.hpp>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/advertise.h"

namespace bimetal::net {
namespace {

constexpr std::chrono::milliseconds kPauseAfterAcceptError{50};
constexpr std::chrono::seconds kTellAcceptErrorsEvery{10};

Error listen_error(const tcp::endpoint& address, const std::error_code& error) {
  const std::string host = address.address().to_string();
  if (error == asio::error::address_in_use) {
    return Error(ErrorCode::System,
                 fmt::format("port {} on {} is in use by another process; choose another with "
                             "--listen or MASTER_PORT, or 0 to let the system choose",
                             address.port(), host));
  }
  // Asio's own category does not map to std::errc.
  const std::error_code in_std_terms(error.value(), std::system_category());
  if (in_std_terms == std::errc::address_not_available) {
    return Error(ErrorCode::System,
                 fmt::format("{} is no address of this machine; listen on one of its own, or on "
                             "0.0.0.0 for all",
                             host));
  }
  return Error(ErrorCode::System, fmt::format("cannot listen on {}: {}",
                                              to_string(to_endpoint(address)), error.message()));
}

}  // namespace

tcp::acceptor open_acceptor(const asio::any_io_executor& executor, const tcp::endpoint& address) {
  try {
    tcp::acceptor acceptor(executor);
    open_to_listen(acceptor, address.protocol());
    // "::" stands for IPv4, too, whatever the system's default.
    std::error_code unable;
    if (address.address() == asio::ip::address_v6::any()) {
      acceptor.set_option(asio::ip::v6_only(false), unable);
    }
    acceptor.bind(address);
    acceptor.listen();
    acceptor.non_blocking(true);
    return acceptor;
  } catch (const std::system_error& error) {
    throw listen_error(address, error.code());
  }
}

asio::awaitable<void> accept_each(tcp::acceptor& acceptor, std::function<void(tcp::socket)> take) {
  asio::steady_timer pause(acceptor.get_executor());
  Repetitions refused(1, kTellAcceptErrorsEvery);
  while (acceptor.is_open()) {
    std::error_code error;
    tcp::socket socket = co_await accept_next(acceptor, error);
    if (!acceptor.is_open()) co_return;
    if (!error) {
      take(std::move(socket));
    } else if (error != asio::error::would_block && error != asio::error::connection_aborted) {
      if (refused.next(Repetitions::Clock::now())) {
        log(LogLevel::warning, "cannot accept connections: {}", error.message());
      }
      pause.expires_after(kPauseAfterAcceptError);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    }
  }
}

void tune_for_frames(tcp::socket& socket, std::chrono::milliseconds peer_timeout) {
  std::error_code ignored;  // the peer may have gone already; the first read tells
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  tune_for_system(socket, peer_timeout);
}

void queue_little(tcp::socket& socket) {
  // 40 ms of a link of 100 Mbit/s. With a quarter of it a busy process lets the link run dry.
  constexpr int kUnsent = 512 * 1024;
  if (!ends_on_one_host(socket)) limit_unsent(socket, kUnsent);
}

bool ends_on_one_host(const tcp::socket& socket) {
  std::error_code error;  // of a connection that has gone already
  const auto here = socket.local_endpoint(error).address();
  const auto there = socket.remote_endpoint(error).address();
  return !error && (there.is_loopback() || there == here);
}

std::string describe_remote(const tcp::socket& socket) {
  std::error_code error;
  const auto address = socket.remote_endpoint(error);
  return error ? "an unknown address" : to_string(to_endpoint(address));
}

std::string describe_local(const tcp::socket& socket) {
  std::error_code error;
  const auto address = socket.local_endpoint(error);
  if (error) return "an unknown address";
  std::string text = to_string(to_endpoint(address));
  try {
    for (const InterfaceAddress& own : own_addresses()) {
      if (own.address == address.address()) return text + " (" + own.name + ")";
    }
  } catch (const Error&) {
    // Only its name is not known.
  }
  return text;
}

Endpoint to_endpoint(const tcp::endpoint& address) {
  return {address.address().to_string(), address.port()};
}

}  // namespace bimetal::net
