// Links between hosts in the place of the system's sockets: as much of TCP, epoll, eventfd and
// timerfd as Asio and Bimetal use. Descriptors below kFirst are the system's own.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "simulation/world.h"

namespace simulation {
namespace {

constexpr int kFirst = 1 << 24;
constexpr std::uint32_t kNothing = 0, kReadable = EPOLLIN;
constexpr Nanoseconds kMillisecond = 1'000'000;
/// A sender's system takes a segment for lost that is not acknowledged by then.
constexpr Nanoseconds kRetransmitsAfter = 200 * kMillisecond;

struct Epoll;

/// Anything with a descriptor.
struct File {
  explicit File(Process* owner) : process(owner) {}
  virtual ~File() = default;
  virtual std::uint32_t ready() const { return 0; }
  virtual void close() {}
  void changed();

  Process* const process;
  int number = -1;
  std::vector<Epoll*> watched_by;
};
using FilePtr = std::shared_ptr<File>;

struct Epoll final : File {
  using File::File;

  struct Watch {
    std::weak_ptr<File> file;
    epoll_event event = {};
    bool pending = false;
  };

  void mark(int number) {
    auto& watch = watches.at(number);
    if (!std::exchange(watch.pending, true)) pending.push_back(number);
    wake_all(waiters);
  }

  int take(epoll_event* into, int most) {
    int count = 0;
    for (auto left = pending.size(); left > 0 && count < most; --left) {
      const int number = pending.front();
      pending.pop_front();
      const auto found = watches.find(number);
      if (found == watches.end()) continue;
      auto& watch = found->second;
      watch.pending = false;
      const auto file = watch.file.lock();
      const auto events = file ? file->ready() & (watch.event.events | EPOLLERR | EPOLLHUP) : 0;
      if (events == 0) continue;
      into[count++] = {.events = events, .data = watch.event.data};
      if ((watch.event.events & EPOLLET) != 0) continue;
      watch.pending = true;
      pending.push_back(number);
    }
    return count;
  }

  void close() override {
    for (const auto& [number, watch] : watches) {
      if (const auto file = watch.file.lock()) std::erase(file->watched_by, this);
    }
    watches.clear();
  }

  std::unordered_map<int, Watch> watches;
  std::deque<int> pending;
  Waiters waiters;
};

void File::changed() {
  for (auto* const epoll : watched_by) epoll->mark(number);
}

struct Event final : File {
  using File::File;
  std::uint32_t ready() const override { return count > 0 ? kReadable : kNothing; }
  std::uint64_t count = 0;
};

struct Alarm final : File {
  using File::File;
  std::uint32_t ready() const override { return rung ? kReadable : kNothing; }
  void close() override { set(-1); }

  void set(Nanoseconds when) {
    if (number_of_event != 0) take_back(due, std::exchange(number_of_event, 0));
    rung = false;
    if (when < 0) return;
    due = std::max(when, now());
    number_of_event = at(due, [this] {
      number_of_event = 0;
      rung = true;
      changed();
    });
  }

  Nanoseconds due = 0;
  std::uint64_t number_of_event = 0;
  bool rung = false;
};

// ---- TCP
// ------------------------------------------------------------------------------------------

struct Address {
  std::uint32_t host = 0;
  std::uint16_t port = 0;
  auto operator<=>(const Address&) const = default;
};

struct Socket final : File, std::enable_shared_from_this<Socket> {
  using File::File;

  std::uint32_t ready() const override {
    if (listening) return arrived.empty() ? kNothing : kReadable;
    std::uint32_t events = 0;
    if (unread > 0 || peer_ended || error != 0) events |= EPOLLIN;
    if (connected && in_window() < links().window) events |= EPOLLOUT;
    if (peer_ended) events |= EPOLLRDHUP;
    if (error != 0) events |= EPOLLERR | EPOLLHUP | EPOLLOUT;
    if (peer_ended && ended) events |= EPOLLHUP;
    return events;
  }

  /// Bytes that are on their way to the peer, or lie there.
  std::size_t in_window() const { return on_their_way + (peer ? peer->unread : 0); }

  void connect_to(Address to);
  void deliver(std::string bytes);
  void reset();
  void end_sending();
  void close() override;

  Address own, there;
  bool listening = false, connected = false;
  std::deque<std::shared_ptr<Socket>> arrived;  // at a listening one
  std::shared_ptr<Socket> peer;
  std::deque<std::string> inbox;
  std::size_t first = 0, unread = 0;  // of the front of the inbox; in all of it
  std::size_t on_their_way = 0;
  Nanoseconds waits_since = 0, heard_at = 0;
  bool ended = false, peer_ended = false, closed = false;
  int error = 0;
};
using SocketPtr = std::shared_ptr<Socket>;

struct Network {
  std::map<int, FilePtr> files;
  std::map<Address, std::weak_ptr<Socket>> listeners;
  std::unordered_map<std::uint32_t, std::uint16_t> last_port;
  std::unordered_map<std::uint32_t, Process*> hosts;
  int last_number = kFirst;
};

Network& network() {
  static auto* const the_only = new Network;
  return *the_only;
}

template <typename Kind>
std::shared_ptr<Kind> file_of(int number) {
  const auto found = network().files.find(number);
  return found == network().files.end() ? nullptr : std::dynamic_pointer_cast<Kind>(found->second);
}

int add(const FilePtr& file) {
  file->number = ++network().last_number;
  network().files.emplace(file->number, file);
  network().hosts.emplace(file->process->address, file->process);
  return file->number;
}

int fail(int code) {
  errno = code;
  return -1;
}

Nanoseconds of_seconds(double seconds) {
  return static_cast<Nanoseconds>(seconds * 1e9);
}

/// When something that `from` sends now has come to `to`, over the cards of both.
Nanoseconds arrival(Process& from, Process& to, std::size_t bytes) {
  const auto& is = links();
  const auto busy = of_seconds(is.message_s);
  if (&from == &to) return now() + of_seconds(is.loopback_s);
  const auto takes = of_seconds(static_cast<double>(bytes) / is.bytes_per_s);
  from.sends_until = std::max(from.sends_until, now()) + busy + takes;
  const auto first_byte = from.sends_until - takes + of_seconds(is.latency_s);
  to.receives_until = std::max(to.receives_until, first_byte) + busy + takes;
  return to.receives_until;
}

bool can_hear(const Process& from, const Process& to) {
  return !from.cut_off && !to.cut_off;
}

std::uint16_t free_port(std::uint32_t host) {
  auto& last = network().last_port.try_emplace(host, std::uint16_t{20000}).first->second;
  return ++last;
}

/// SYN, and the answer to it.
void Socket::connect_to(Address to) {
  there = to;
  own = {process->address, free_port(process->address)};
  const auto host = network().hosts.find(to.host);
  if (host == network().hosts.end() || !can_hear(*process, *host->second)) return;
  Process& callee = *host->second;
  at(arrival(*process, callee, 0), [self = shared_from_this(), &callee] {
    const auto found = network().listeners.find(self->there);
    const auto listener = found == network().listeners.end() ? nullptr : found->second.lock();
    if (!can_hear(*self->process, callee)) return;
    if (listener) {
      const auto taken = std::make_shared<Socket>(&callee);
      taken->own = self->there;
      taken->there = self->own;
      taken->connected = true;
      taken->heard_at = self->heard_at = now();
      taken->peer = self;
      self->peer = taken;
      listener->arrived.push_back(taken);
      ++callee.traffic.connections;
      listener->changed();
    }
    at(arrival(callee, *self->process, 0), [self, listener] {
      if (self->closed) return;
      if (!listener) {
        self->error = ECONNREFUSED;
      } else {
        self->connected = true;
        ++self->process->traffic.connections;
      }
      self->changed();
    });
  });
}

void Socket::deliver(std::string bytes) {
  unread += bytes.size();
  ++process->traffic.messages_received;
  process->traffic.bytes_received += bytes.size();
  inbox.push_back(std::move(bytes));
  changed();
}

void Socket::reset() {
  if (error != 0 || closed) return;
  error = ECONNRESET;
  changed();
}

/// FIN, after what has been sent.
void Socket::end_sending() {
  if (std::exchange(ended, true) || !peer || !can_hear(*process, *peer->process)) return;
  at(arrival(*process, *peer->process, 0), [self = shared_from_this(), to = peer] {
    if (!can_hear(*self->process, *to->process) || to->closed) return;
    to->peer_ended = true;
    to->changed();
  });
}

void Socket::close() {
  if (std::exchange(closed, true)) return;
  if (listening) {
    network().listeners.erase(own);
    for (const auto& one : std::exchange(arrived, {})) one->close();
  }
  if (!peer) return;
  if (unread == 0) {
    end_sending();
  } else if (can_hear(*process, *peer->process)) {
    at(arrival(*process, *peer->process, 0), [to = peer] { to->reset(); });
  }
  inbox.clear();
  unread = 0;
  if (!peer->closed) return;
  peer->peer.reset();  // each has kept the other
  peer.reset();
}

long send_bytes(Socket& from, std::string bytes) {
  if (from.error != 0) return fail(std::exchange(from.error, EPIPE) == EPIPE ? EPIPE : ECONNRESET);
  if (!from.connected) return fail(ENOTCONN);
  if (from.ended) return fail(EPIPE);
  const auto room = links().window - std::min(links().window, from.in_window());
  if (room == 0) return fail(EAGAIN);
  if (bytes.size() > room) bytes.resize(room);
  const auto size = bytes.size();
  auto& traffic = from.process->traffic;
  ++traffic.messages_sent;
  traffic.bytes_sent += size;
  if (from.on_their_way == 0) from.waits_since = now();
  from.on_their_way += size;
  if (!can_hear(*from.process, *from.peer->process)) return static_cast<long>(size);
  const auto when = arrival(*from.process, *from.peer->process, size);
  at(when, [self = from.shared_from_this(), bytes = std::move(bytes)]() mutable {
    if (!self->peer || !can_hear(*self->process, *self->peer->process)) return;
    Socket& to = *self->peer;
    self->on_their_way -= bytes.size();
    self->waits_since = self->heard_at = now();
    if (!to.closed) return to.deliver(std::move(bytes));
    at(arrival(*to.process, *self->process, 0), [self] { self->reset(); });
  });
  return static_cast<long>(size);
}

long receive_bytes(Socket& from, char* into, std::size_t most) {
  if (from.unread == 0) {
    if (from.error != 0) return fail(from.error);
    return from.peer_ended ? 0 : fail(EAGAIN);
  }
  std::size_t done = 0;
  while (done < most && !from.inbox.empty()) {
    const auto& front = from.inbox.front();
    const auto bytes = std::min(most - done, front.size() - from.first);
    std::memcpy(into + done, front.data() + from.first, bytes);
    done += bytes;
    from.first += bytes;
    if (from.first < front.size()) break;
    from.inbox.pop_front();
    from.first = 0;
  }
  const bool was_full = from.peer && from.peer->in_window() >= links().window;
  from.unread -= done;
  if (was_full) from.peer->changed();
  return static_cast<long>(done);
}

Address from_system(const sockaddr* address) {
  sockaddr_in in = {};
  std::memcpy(&in, address, sizeof(in));
  return {ntohl(in.sin_addr.s_addr), ntohs(in.sin_port)};
}

void to_system(const Address& address, sockaddr* into, socklen_t* size) {
  sockaddr_in in = {};
  in.sin_family = AF_INET;
  in.sin_addr.s_addr = htonl(address.host);
  in.sin_port = htons(address.port);
  std::memcpy(into, &in, std::min<std::size_t>(*size, sizeof(in)));
  *size = sizeof(in);
}

tcp_info info_of(const Socket& socket) {
  tcp_info info = {};
  info.tcpi_state = TCP_ESTABLISHED;
  info.tcpi_unacked = socket.on_their_way > 0 ? 1 : 0;
  const auto waited = now() - socket.waits_since;
  info.tcpi_retransmits = info.tcpi_unacked > 0 && waited > kRetransmitsAfter ? 1 : 0;
  info.tcpi_last_ack_recv = static_cast<std::uint32_t>((now() - socket.heard_at) / kMillisecond);
  return info;
}

void close_file(const FilePtr& file) {
  network().files.erase(file->number);
  for (auto* const epoll : std::exchange(file->watched_by, {})) epoll->watches.erase(file->number);
  file->close();
}

}  // namespace

void close_all_of(Process& process) {
  std::vector<FilePtr> own;
  for (const auto& [number, file] : network().files) {
    if (file->process == &process) own.push_back(file);
  }
  for (const auto& file : own) close_file(file);
}

}  // namespace simulation

// ---- in the place of the system's functions
// -------------------------------------------------------

using namespace simulation;

extern "C" {

int socket(int, int, int) noexcept {
  return add(std::make_shared<Socket>(current_process()));
}

int bind(int number, const sockaddr* address, socklen_t) noexcept {
  const auto file = file_of<Socket>(number);
  file->own = from_system(address);
  if (file->own.port == 0) file->own.port = free_port(file->own.host);
  return network().listeners.contains(file->own) ? fail(EADDRINUSE) : 0;
}

int listen(int number, int) noexcept {
  const auto file = file_of<Socket>(number);
  file->listening = true;
  network().listeners[file->own] = file;
  return 0;
}

int accept4(int number, sockaddr*, socklen_t*, int) {
  const auto file = file_of<Socket>(number);
  if (file->arrived.empty()) return fail(EAGAIN);
  const auto taken = file->arrived.front();
  file->arrived.pop_front();
  return add(taken);
}

int connect(int number, const sockaddr* address, socklen_t) {
  file_of<Socket>(number)->connect_to(from_system(address));
  return fail(EINPROGRESS);
}

int getsockname(int number, sockaddr* into, socklen_t* size) noexcept {
  to_system(file_of<Socket>(number)->own, into, size);
  return 0;
}

int getpeername(int number, sockaddr* into, socklen_t* size) noexcept {
  const auto file = file_of<Socket>(number);
  if (!file->connected) return fail(ENOTCONN);
  to_system(file->there, into, size);
  return 0;
}

int setsockopt(int, int, int, const void*, socklen_t) noexcept {
  return 0;
}

int getsockopt(int number, int level, int name, void* value, socklen_t* size) noexcept {
  const auto file = file_of<Socket>(number);
  if (level == IPPROTO_TCP && name == TCP_INFO) {
    const auto info = info_of(*file);
    *size = std::min<socklen_t>(*size, sizeof(info));
    std::memcpy(value, &info, *size);
    return 0;
  }
  const int error = level == SOL_SOCKET && name == SO_ERROR ? file->error : 0;
  std::memcpy(value, &error, std::min<std::size_t>(*size, sizeof(error)));
  return 0;
}

int shutdown(int number, int) noexcept {
  file_of<Socket>(number)->end_sending();
  return 0;
}

ssize_t send(int number, const void* bytes, size_t size, int) {
  return send_bytes(*file_of<Socket>(number), std::string(static_cast<const char*>(bytes), size));
}

ssize_t sendmsg(int number, const msghdr* message, int) {
  std::string all;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) {
    all.append(static_cast<const char*>(message->msg_iov[i].iov_base), message->msg_iov[i].iov_len);
  }
  return send_bytes(*file_of<Socket>(number), std::move(all));
}

ssize_t recv(int number, void* into, size_t size, int) {
  return receive_bytes(*file_of<Socket>(number), static_cast<char*>(into), size);
}

ssize_t recvmsg(int number, msghdr* message, int) {
  const auto file = file_of<Socket>(number);
  ssize_t all = 0;
  for (std::size_t i = 0; i < message->msg_iovlen; ++i) {
    const auto& part = message->msg_iov[i];
    const auto got = receive_bytes(*file, static_cast<char*>(part.iov_base), part.iov_len);
    if (got <= 0) return all > 0 ? all : got;
    all += got;
    if (static_cast<std::size_t>(got) < part.iov_len) break;
  }
  return all;
}

ssize_t read(int number, void* into, size_t size) {
  if (number < kFirst) return ::syscall(SYS_read, number, into, size);
  if (const auto socket = file_of<Socket>(number)) {
    return receive_bytes(*socket, static_cast<char*>(into), size);
  }
  const auto event = file_of<Event>(number);
  if (!event) return 0;
  std::memcpy(into, &event->count, sizeof(event->count));
  event->count = 0;
  return sizeof(event->count);
}

ssize_t write(int number, const void* bytes, size_t size) {
  if (number < kFirst) return ::syscall(SYS_write, number, bytes, size);
  if (const auto socket = file_of<Socket>(number)) {
    return send_bytes(*socket, std::string(static_cast<const char*>(bytes), size));
  }
  const auto event = file_of<Event>(number);
  std::uint64_t more = 0;
  std::memcpy(&more, bytes, sizeof(more));
  event->count += more;
  event->changed();
  return sizeof(more);
}

int close(int number) {
  if (number < kFirst) return static_cast<int>(::syscall(SYS_close, number));
  const auto found = network().files.find(number);
  if (found == network().files.end()) return fail(EBADF);
  const FilePtr file = found->second;
  close_file(file);
  return 0;
}

int ioctl(int number, unsigned long request, ...) noexcept {
  va_list rest;
  va_start(rest, request);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  return number < kFirst ? static_cast<int>(::syscall(SYS_ioctl, number, request, argument)) : 0;
}

int fcntl(int number, int command, ...) {
  va_list rest;
  va_start(rest, command);
  void* const argument = va_arg(rest, void*);
  va_end(rest);
  return number < kFirst ? static_cast<int>(::syscall(SYS_fcntl, number, command, argument)) : 0;
}

int poll(pollfd* entries, nfds_t count, int timeout) {
  if (std::any_of(entries, entries + count, [](const auto& one) { return one.fd < kFirst; })) {
    return static_cast<int>(::syscall(SYS_poll, entries, count, timeout));
  }
  int found = 0;
  for (nfds_t i = 0; i < count; ++i) {
    const auto file = file_of<File>(entries[i].fd);
    const auto events = file ? file->ready() : EPOLLERR;
    entries[i].revents = static_cast<short>(
        events & (static_cast<std::uint32_t>(entries[i].events) | EPOLLERR | EPOLLHUP));
    found += entries[i].revents != 0 ? 1 : 0;
  }
  return found;
}

int eventfd(unsigned int count, int) noexcept {
  const auto event = std::make_shared<Event>(current_process());
  event->count = count;
  return add(event);
}

int timerfd_create(clockid_t, int) noexcept {
  return add(std::make_shared<Alarm>(current_process()));
}

int timerfd_settime(int number, int flags, const itimerspec* when, itimerspec*) noexcept {
  const auto length = when->it_value.tv_sec * 1'000'000'000 + when->it_value.tv_nsec;
  const auto begin = (flags & TFD_TIMER_ABSTIME) != 0 ? 0 : now();
  file_of<Alarm>(number)->set(length == 0 ? -1 : begin + length);
  return 0;
}

int epoll_create1(int) noexcept {
  return add(std::make_shared<Epoll>(current_process()));
}
int epoll_create(int) noexcept {
  return epoll_create1(0);
}

int epoll_ctl(int number, int what, int of, epoll_event* event) noexcept {
  const auto epoll = file_of<Epoll>(number);
  const auto file = file_of<File>(of);
  if (!epoll || !file) return fail(EBADF);
  if (what == EPOLL_CTL_DEL) {
    epoll->watches.erase(of);
    std::erase(file->watched_by, epoll.get());
    return 0;
  }
  if (what == EPOLL_CTL_ADD) file->watched_by.push_back(epoll.get());
  auto& watch = epoll->watches[of];
  watch.file = file;
  watch.event = *event;
  if (file->ready() != 0) epoll->mark(of);
  return 0;
}

int epoll_wait(int number, epoll_event* events, int most, int timeout) {
  const auto epoll = file_of<Epoll>(number);
  const auto until = timeout < 0 ? -1 : now() + timeout * kMillisecond;
  while (true) {
    const int count = epoll->take(events, most);
    if (count > 0 || timeout == 0) return count;
    if (!wait_in(epoll->waiters, until)) return 0;
  }
}
}
