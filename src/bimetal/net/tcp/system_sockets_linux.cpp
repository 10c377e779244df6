// TCP_USER_TIMEOUT is not used: since Linux 5.11 it also ends a connection whose peer acknowledges
// everything but has kept its window closed for that long, that is, a peer which is merely stopped.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "bimetal/net/tcp/sockets.h"

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

// A closed window is probed at growing intervals, each probe answered by a living peer. One answer
// may get lost.
constexpr int kUnansweredProbes = 3;

// An option of Linux 6.15 and later, missing from most headers. In earlier versions the pauses
// between the kernel's tries double without end, and a silence may cost its length once more.
constexpr int kTcpRtoMaxMs = 44;
// The least value that the kernel takes.
constexpr int kLeastRtoMaxMs = 1000;
// It gives up by itself after 15 tries, which must not be sooner than the timeout.
constexpr int kTriesPerTimeout = 10;

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
// closed; the functions above tell the two apart.
void tune_for_system(tcp::socket& socket, std::chrono::milliseconds) {
  if (!ends_on_one_host(socket)) return;
  // Inside a machine nothing is congested. A system's choice that paces its sends (BBR) takes a
  // third more time there; reno does not, and is always there.
  constexpr std::string_view kPlain = "reno";
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

void limit_unsent(tcp::socket& socket, int bytes) {
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
}

void PathWatch::prepare(asio::ip::tcp::socket& socket) {
  const int pause = std::clamp(static_cast<int>(timeout_.count() / kTriesPerTimeout),
                               kLeastRtoMaxMs, 120 * kLeastRtoMaxMs);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, kTcpRtoMaxMs, &pause, sizeof(pause));
}

std::chrono::milliseconds PathWatch::unanswered_for(asio::ip::tcp::socket& socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};

  const auto now = std::chrono::steady_clock::now();
  const bool in_flight = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  if (!in_flight) quiet_since_ = now;
  const bool repeated = info.tcpi_retransmits > 0 || info.tcpi_probes >= kUnansweredProbes;
  if (!in_flight || !repeated) return {};
  // After a pause of this process the last acknowledgement is old although nothing was awaited:
  // sent data must have been in flight for as long, as seen by us.
  return std::min(std::chrono::milliseconds(info.tcpi_last_ack_recv),
                  std::chrono::duration_cast<std::chrono::milliseconds>(now - quiet_since_));
}

/// The system answers data for a socket that nobody holds any more with a reset, heartbeats
/// included.
bool PathWatch::closed_unread(asio::ip::tcp::socket& socket) {
  pollfd entry{socket.native_handle(), POLLRDHUP, 0};
  if (has_sent_all_ || ::poll(&entry, 1, 0) <= 0) return false;
  if ((entry.revents & (POLLERR | POLLHUP)) != 0) return true;
  has_sent_all_ = true;
  return false;
}

}  // namespace bimetal::net
