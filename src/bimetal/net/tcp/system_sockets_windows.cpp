// Sockets that Asio opens or accepts are not inherited by child processes here.

#include <winsock2.h>
#include <ws2tcpip.h>

#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {
namespace {

constexpr int kBufferBytes = 4 << 20;

bool set(tcp::socket& socket, int option, DWORD value) {
  return ::setsockopt(socket.native_handle(), IPPROTO_TCP, option,
                      reinterpret_cast<const char*>(&value), sizeof(value)) == 0;
}

}  // namespace

tcp::socket open_socket(const asio::any_io_executor& executor, const tcp& protocol) {
  return tcp::socket(executor, protocol);
}

// Overlapped: waiting until a listening socket is readable goes by select() in a thread of Asio's,
// and under Wine shows a second connection late or never.
asio::awaitable<tcp::socket> accept_next(tcp::acceptor& acceptor, std::error_code& error) {
  tcp::socket socket(acceptor.get_executor());
  co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, error));
  co_return socket;
}

// Lingering connections do not bar a port on Windows, and "reuse" would let two processes share it.
void open_to_listen(tcp::acceptor& acceptor, const tcp& protocol) {
  acceptor.open(protocol);
  const BOOL on = TRUE;
  ::setsockopt(acceptor.native_handle(), SOL_SOCKET, SO_EXCLUSIVEADDRUSE,
               reinterpret_cast<const char*>(&on), sizeof(on));
}

void tune_for_system(tcp::socket& socket, std::chrono::milliseconds peer_timeout) {
  // How long sent data may go unacknowledged; older releases of Windows count in whole seconds.
  const auto milliseconds = static_cast<DWORD>(peer_timeout.count());
  if (!set(socket, TCP_MAXRTMS, milliseconds)) set(socket, TCP_MAXRT, (milliseconds + 999) / 1000);
  std::error_code ignored;
  socket.set_option(asio::socket_base::send_buffer_size(kBufferBytes), ignored);
  socket.set_option(asio::socket_base::receive_buffer_size(kBufferBytes), ignored);
}

// Winsock takes everything that it is given.
void limit_unsent(tcp::socket&, int) {}

}  // namespace bimetal::net
