#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {
namespace {

constexpr int kBufferBytes = 4 << 20;

/// There is no way to open a socket with this set: a fork in between would inherit it.
void close_on_exec(int descriptor) {
  ::fcntl(descriptor, F_SETFD, ::fcntl(descriptor, F_GETFD) | FD_CLOEXEC);
}

}  // namespace

tcp::socket open_socket(const asio::any_io_executor& executor, const tcp& protocol) {
  tcp::socket socket(executor, protocol);
  close_on_exec(socket.native_handle());
  return socket;
}

asio::awaitable<tcp::socket> accept_next(tcp::acceptor& acceptor, std::error_code& error) {
  co_await acceptor.async_wait(tcp::acceptor::wait_read,
                               asio::redirect_error(asio::use_awaitable, error));
  tcp::socket socket(acceptor.get_executor());
  if (error) co_return socket;
  acceptor.accept(socket, error);
  if (!error) close_on_exec(socket.native_handle());
  co_return socket;
}

void open_to_listen(tcp::acceptor& acceptor, const tcp& protocol) {
  acceptor.open(protocol);
  close_on_exec(acceptor.native_handle());
  acceptor.set_option(tcp::acceptor::reuse_address(true));
}

void tune_for_system(tcp::socket& socket, std::chrono::milliseconds peer_timeout) {
  // Counts retransmissions alone, so that a peer which answers with a closed window is kept.
  const int seconds = static_cast<int>((peer_timeout.count() + 999) / 1000);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_RXT_CONNDROPTIME, &seconds,
               sizeof(seconds));
  std::error_code ignored;
  socket.set_option(asio::socket_base::send_buffer_size(kBufferBytes), ignored);
  socket.set_option(asio::socket_base::receive_buffer_size(kBufferBytes), ignored);
}

void limit_unsent(tcp::socket& socket, int bytes) {
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

}  // namespace bimetal::net
