// TCP_USER_TIMEOUT is not used: since Linux 5.11 it also ends a connection whose peer acknowledges
// everything but has kept its window closed for that long, that is, a peer which is merely stopped.

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>

#include "bimetal/net/tcp/path_watch.h"

namespace bimetal::net {
namespace {

// A closed window is probed at growing intervals, each probe answered by a living peer. One answer
// may get lost.
constexpr int kUnansweredProbes = 3;

// Of Linux 6.15 and later; missing from most headers. Before, the pauses between the kernel's tries
// double without end, and a silence may cost its length once more.
constexpr int kTcpRtoMaxMs = 44;
// What the kernel takes.
constexpr int kLeastRtoMaxMs = 1000;
// It gives up by itself after 15 tries, which must not be sooner than the timeout.
constexpr int kTriesPerTimeout = 10;

}  // namespace

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
  // what is in flight must have been so for as long, as seen by us.
  return std::min(std::chrono::milliseconds(info.tcpi_last_ack_recv),
                  std::chrono::duration_cast<std::chrono::milliseconds>(now - quiet_since_));
}

/// What is sent to a socket that nobody holds any more is answered by a reset, heartbeats included.
bool PathWatch::closed_unread(asio::ip::tcp::socket& socket) {
  pollfd entry{socket.native_handle(), POLLRDHUP, 0};
  if (has_sent_all_ || ::poll(&entry, 1, 0) <= 0) return false;
  if ((entry.revents & (POLLERR | POLLHUP)) != 0) return true;
  has_sent_all_ = true;
  return false;
}

}  // namespace bimetal::net
