#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "bimetal/net/tcp/sockets.h"
#include "bimetal/net/tcp/system_sockets.h"

namespace bimetal::net {
namespace {

int open_descriptor(const tcp& protocol) {
  const int fd = ::socket(protocol.family(), SOCK_STREAM | SOCK_CLOEXEC, protocol.protocol());
  if (fd < 0) throw std::system_error(errno, std::system_category());
  return fd;
}

tcp::socket accept_now(tcp::acceptor& acceptor, std::error_code& error) {
  tcp::socket socket(acceptor.get_executor());
  if (error) return socket;
  const int fd = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    error.assign(errno, std::system_category());
    return socket;
  }
  socket.assign(acceptor.local_endpoint().protocol(), fd, error);
  return socket;
}

}  // namespace

tcp::socket open_socket(const asio::any_io_executor& executor, const tcp& protocol) {
  tcp::socket socket(executor);
  socket.assign(protocol, open_descriptor(protocol));
  return socket;
}

asio::awaitable<tcp::socket> accept_next(tcp::acceptor& acceptor, std::error_code& error) {
  co_await acceptor.async_wait(tcp::acceptor::wait_read,
                               asio::redirect_error(asio::use_awaitable, error));
  co_return accept_now(acceptor, error);
}

void open_to_listen(tcp::acceptor& acceptor, const tcp& protocol) {
  acceptor.assign(protocol, open_descriptor(protocol));
  acceptor.set_option(tcp::acceptor::reuse_address(true));
}

// Buffers fit themselves to the path, and further than an unprivileged process may ask.
// TCP_USER_TIMEOUT would also cut a peer that is stopped or reads slowly once its window has
// closed; path_watch_linux.cpp tells the two apart.
void tune_for_system(tcp::socket& socket, std::chrono::milliseconds) {
  if (!ends_on_one_host(socket)) return;
  // Inside a machine nothing is congested. A system's choice that paces what it sends (BBR) takes a
  // third more time there; reno does not, and is always there.
  constexpr std::string_view kPlain = "reno";
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

void limit_unsent(tcp::socket& socket, int bytes) {
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

}  // namespace bimetal::net
