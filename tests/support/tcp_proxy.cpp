#include "support/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::testing {
namespace {

constexpr int kPollMilliseconds = 10;

sockaddr_in address_of(const net::Endpoint& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  ::inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr);
  return address;
}

void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

TcpProxy::TcpProxy(net::Endpoint server) : server_(std::move(server)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = address_of({"127.0.0.1", 0});
  socklen_t size = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, generic, size) != 0 || ::listen(listener_, 16) != 0 ||
      ::getsockname(listener_, generic, &size) != 0) {
    throw system_error("the proxy cannot listen", errno);
  }
  endpoint_ = {"127.0.0.1", ntohs(address.sin_port)};
  thread_ = std::thread([this] { run(); });
}

TcpProxy::~TcpProxy() {
  stopping_ = true;
  thread_.join();
  for (Link& link : links_) close_link(link);
  ::close(listener_);
}

void TcpProxy::filter(Filter filter) {
  std::lock_guard lock(mutex_);
  filter_ = std::move(filter);
}

void TcpProxy::alter(std::string text) {
  filter([text = std::move(text)](Direction, std::uint64_t, std::span<char> bytes) {
    for (auto at = bytes.begin(); at != bytes.end();) {
      at = std::search(at, bytes.end(), text.begin(), text.end());
      if (at == bytes.end()) return;
      at += static_cast<std::ptrdiff_t>(text.size());
      *(at - 1) ^= 1;
    }
  });
}

void TcpProxy::cut(Ending ending) {
  std::lock_guard lock(mutex_);
  for (Link& link : links_) {
    if (ending == Ending::half_open) {
      if (link.client >= 0) ::close(link.client);
      link.client = -1;
      continue;
    }
    if (ending == Ending::reset) {
      const linger at_once{1, 0};
      ::setsockopt(link.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      ::setsockopt(link.server, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    }
    close_link(link);
  }
  if (ending != Ending::half_open) links_.clear();
}

std::uint64_t TcpProxy::passed(Direction direction) const {
  return direction == Direction::to_server ? to_server_ : to_client_;
}

void TcpProxy::close_link(Link& link) {
  if (link.client >= 0) ::close(link.client);
  ::close(link.server);
}

void TcpProxy::accept_client() {
  const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = address_of(server_);
  if (::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ::close(client);
    ::close(server);
    return;
  }
  set_no_delay(client);
  set_no_delay(server);
  links_.push_back({client, server});
}

void TcpProxy::run() {
  while (!stopping_) {
    std::unique_lock lock(mutex_);
    std::vector<pollfd> waiting{{listener_, POLLIN, 0}};
    if (!held_) {
      for (const Link& link : links_) {
        waiting.push_back({link.client, POLLIN, 0});  // poll() skips negative ones
        waiting.push_back({link.client < 0 ? -1 : link.server, POLLIN, 0});
      }
    }
    lock.unlock();
    if (::poll(waiting.data(), waiting.size(), kPollMilliseconds) <= 0) continue;
    lock.lock();
    if (waiting[0].revents) accept_client();
    std::size_t at = 1;
    for (auto link = links_.begin(); link != links_.end() && at + 1 < waiting.size(); at += 2) {
      // Cut meanwhile: the rest is looked at in the next round.
      if (link->client != waiting[at].fd) break;
      const bool good = (!waiting[at].revents ||
                         pass(link->client, link->server, Direction::to_server, link->to_server)) &&
                        (!waiting[at + 1].revents ||
                         pass(link->server, link->client, Direction::to_client, link->to_client));
      if (good) {
        ++link;
      } else {
        close_link(*link);
        link = links_.erase(link);
      }
    }
  }
}

/// One piece of a stream; false when it has ended. Under the lock.
bool TcpProxy::pass(int from, int to, Direction direction, std::uint64_t& offset) {
  std::array<char, 65536> bytes;
  const auto size = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (size <= 0) return false;
  std::this_thread::sleep_for(delay_.load());
  const std::span piece(bytes.data(), static_cast<std::size_t>(size));
  if (filter_) filter_(direction, offset, piece);
  offset += piece.size();
  (direction == Direction::to_server ? to_server_ : to_client_) += piece.size();
  // A full receiver must not stop the other direction for ever: wait in small steps.
  for (std::size_t sent = 0; sent < piece.size() && !stopping_;) {
    const auto part =
        ::send(to, piece.data() + sent, piece.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (part > 0) {
      sent += static_cast<std::size_t>(part);
    } else if (errno == EAGAIN || errno == EINTR) {
      pollfd writable{to, POLLOUT, 0};
      ::poll(&writable, 1, kPollMilliseconds);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace bimetal::testing
