#include "bimetal/net/tcp/sockets.h"

#include <fmt/format.h>

#include <system_error>

#include "bimetal/base/error.h"

#ifndef _WIN32
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#endif

namespace bimetal::net {
namespace {

#if !defined(_WIN32) && !defined(SOCK_CLOEXEC)
void close_on_exec(int fd) {
  ::fcntl(fd, F_SETFD, ::fcntl(fd, F_GETFD) | FD_CLOEXEC);
}
#endif

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

tcp::socket open_socket(const asio::any_io_executor& executor, const tcp& protocol) {
  tcp::socket socket(executor);
#ifdef SOCK_CLOEXEC
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, protocol.protocol());
  if (fd < 0) throw system_error("cannot open a socket", errno);
  socket.assign(protocol, fd);
#else
  socket.open(protocol);
#ifndef _WIN32
  close_on_exec(socket.native_handle());
#endif
#endif
  return socket;
}

tcp::acceptor open_acceptor(const asio::any_io_executor& executor, const tcp::endpoint& address) {
  try {
    tcp::acceptor acceptor(executor);
    acceptor.assign(address.protocol(), open_socket(executor, address.protocol()).release());
#ifndef _WIN32
    // A port whose last connections still linger is free to us; on Windows the same option would
    // let two processes share one port.
    acceptor.set_option(tcp::acceptor::reuse_address(true));
#endif
    acceptor.bind(address);
    acceptor.listen();
    acceptor.non_blocking(true);
    return acceptor;
  } catch (const std::system_error& error) {
    throw listen_error(address, error.code());
  }
}

tcp::socket accept_now(tcp::acceptor& acceptor, std::error_code& error) {
  tcp::socket socket(acceptor.get_executor());
#ifdef SOCK_CLOEXEC
  const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    error.assign(errno, std::system_category());
    return socket;
  }
  socket.assign(acceptor.local_endpoint().protocol(), fd, error);
#else
  acceptor.accept(socket, error);
#ifndef _WIN32
  if (!error) close_on_exec(socket.native_handle());
#endif
#endif
  return socket;
}

void tune_for_frames(tcp::socket& socket, std::chrono::milliseconds peer_timeout) {
  std::error_code ignored;  // the peer may have gone already; the first read tells
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
#if defined(__APPLE__)
  // Counts retransmissions alone, so that a peer which answers with a closed window is kept.
  const int seconds = static_cast<int>((peer_timeout.count() + 999) / 1000);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_RXT_CONNDROPTIME, &seconds,
               sizeof(seconds));
#else
  // Linux: TCP_USER_TIMEOUT would also cut a peer that is stopped or reads slowly once its window
  // has closed; path_watch_linux.cpp tells the two apart.
  static_cast<void>(peer_timeout);
#endif
#if !defined(__linux__)
  // Linux fits buffers to the path by itself, and further than an unprivileged process may ask.
  constexpr int kBufferBytes = 4 << 20;
  socket.set_option(asio::socket_base::send_buffer_size(kBufferBytes), ignored);
  socket.set_option(asio::socket_base::receive_buffer_size(kBufferBytes), ignored);
#endif
}

std::string describe_remote(const tcp::socket& socket) {
  std::error_code error;
  const auto address = socket.remote_endpoint(error);
  return error ? "an unknown address" : to_string(to_endpoint(address));
}

Endpoint to_endpoint(const tcp::endpoint& address) {
  return {address.address().to_string(), address.port()};
}

}  // namespace bimetal::net
