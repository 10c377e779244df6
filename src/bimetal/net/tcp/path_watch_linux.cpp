// TCP_USER_TIMEOUT is not used: since Linux 5.11 it also ends a connection whose peer acknowledges
// everything but has kept its window closed for that long, that is, a peer which is merely stopped.

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "bimetal/net/tcp/path_watch.h"

namespace bimetal::net {
namespace {

// A closed window is probed at growing intervals, each probe answered by a living peer. One answer
// may get lost.
constexpr int kUnansweredProbes = 3;

}  // namespace

bool PathWatch::unanswered(asio::ip::tcp::socket& socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(socket.native_handle(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;

  const auto now = std::chrono::steady_clock::now();
  const bool in_flight = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  if (!in_flight) quiet_since_ = now;
  const bool repeated = info.tcpi_retransmits > 0 || info.tcpi_probes >= kUnansweredProbes;
  const bool silent = std::chrono::milliseconds(info.tcpi_last_ack_recv) >= timeout_;
  // After a pause of this process the last acknowledgement is old although nothing was awaited:
  // what is in flight must have been so for a while, as seen by us.
  return in_flight && repeated && silent && now - quiet_since_ >= timeout_ / 2;
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
