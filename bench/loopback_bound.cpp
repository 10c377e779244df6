// How fast this machine can do an all_reduce of float32 over TCP on its loopback interface, if
// nothing costs anything but the system's calls and the additions: a ring of N processes of one
// thread, on bare sockets, without messages, headers, checks or waits for each other's readiness.
// Usage: loopback_bound RANKS SECONDS [--read BYTES] [--write BYTES] [--buffer BYTES]
// [--connections K]
// [--congestion NAME] BYTES...
// Prints what gloo_all_reduce.py prints. --read and --write: at most so much a call; --buffer:
// SO_SNDBUF and SO_RCVBUF (default: as the system fits them); --connections: so many rings side by
// side, of a share of the data each; --congestion: TCP's congestion control (default: reno, which
// does not pace what it sends; an empty word: the system's).

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

namespace {

constexpr int kMostRanks = 16;
constexpr int kMostRuns = 2000;

struct Settings {
  int ranks = 2;
  double seconds = 0.5;
  std::size_t read = 256 << 10, write = 256 << 10;
  int buffer = 0;
  int connections = 1;
  std::string congestion = "reno";
  std::vector<std::size_t> sizes;
};

// In memory that all processes share.
struct Shared {
  std::atomic<int> arrived{0}, round{0};
  double spans[kMostRanks][kMostRuns];
  double figure[kMostRanks];
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

void barrier(Shared& shared, int ranks) {
  const int round = shared.round.load();
  if (shared.arrived.fetch_add(1) + 1 == ranks) {
    shared.arrived = 0;
    ++shared.round;
  }
  while (shared.round.load() == round) ::sched_yield();
}

// The two ends of one connection over loopback.
void connect_pair(int ends[2], const Settings& settings) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  const auto tune = [&](int fd) {
    const auto& name = settings.congestion;
    if (!name.empty() && ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), name.size())) {
      fail("TCP_CONGESTION");
    }
    const int buffer = settings.buffer;
    if (buffer == 0) return;
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer));
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer));
  };
  if (listener < 0) fail("socket");
  tune(listener);
  if (::bind(listener, plain, length) || ::listen(listener, 1) ||
      ::getsockname(listener, plain, &length)) {
    fail("listen");
  }
  ends[0] = ::socket(AF_INET, SOCK_STREAM, 0);
  tune(ends[0]);
  if (::connect(ends[0], plain, length)) fail("connect");
  ends[1] = ::accept(listener, nullptr, nullptr);
  if (ends[1] < 0) fail("accept");
  ::close(listener);
  const int on = 1;
  for (int i = 0; i < 2; ++i) {
    ::setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::fcntl(ends[i], F_SETFL, O_NONBLOCK);
  }
}

void add(float* __restrict to, const float* __restrict from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
}

// One ring as one rank sees it. A stream flows in it: one segment for each step.
class Ring {
 public:
  Ring(const Settings& settings, int rank, int right, int left)
      : settings_(settings), rank_(rank), right_(right), left_(left), staging_(settings.read) {}

  void begin(float* data, std::size_t bytes) {
    data_ = reinterpret_cast<std::byte*>(data);
    segment_ = bytes / static_cast<std::size_t>(settings_.ranks) / 64 * 64;
    whole_ = 2 * static_cast<std::size_t>(settings_.ranks - 1) * segment_;
    sent_ = received_ = partial_ = 0;
  }
  bool done() const { return sent_ == whole_ && received_ == whole_; }

  // A segment may leave as it has come from the left; the first is this rank's own.
  std::size_t sendable() const { return std::min(whole_, segment_ + received_ / 64 * 64) - sent_; }
  void ask(std::vector<pollfd>& fds) const {
    fds.push_back({left_, static_cast<short>(received_ < whole_ ? POLLIN : 0), 0});
    fds.push_back({right_, static_cast<short>(sendable() > 0 ? POLLOUT : 0), 0});
  }

  void write() {
    const std::size_t step = sent_ / segment_, offset = sent_ % segment_;
    const std::size_t most = std::min({sendable(), segment_ - offset, settings_.write});
    if (most == 0) return;
    const auto done =
        ::send(right_, place(rank_ - static_cast<int>(step)) + offset, most, MSG_NOSIGNAL);
    if (done > 0) sent_ += static_cast<std::size_t>(done);
    if (done < 0 && errno != EAGAIN) fail("send");
  }

  void read() {
    if (received_ == whole_) return;
    const std::size_t step = received_ / segment_, offset = received_ % segment_;
    const std::size_t most = std::min(segment_ - offset, settings_.read);
    const bool adds = step + 1 < static_cast<std::size_t>(settings_.ranks);
    std::byte* const there = place(rank_ - 1 - static_cast<int>(step)) + offset;
    // partial_: bytes of an element that has not come whole.
    const auto done = ::recv(left_, adds ? staging_.data() + partial_ : there, most - partial_, 0);
    if (done == 0) std::exit(1);
    if (done < 0) {
      if (errno != EAGAIN) fail("recv");
      return;
    }
    if (!adds) {
      received_ += static_cast<std::size_t>(done);
      return;
    }
    const std::size_t have = partial_ + static_cast<std::size_t>(done), whole = have / 4 * 4;
    add(reinterpret_cast<float*>(there), reinterpret_cast<const float*>(staging_.data()),
        whole / 4);
    partial_ = have - whole;
    std::memmove(staging_.data(), staging_.data() + whole, partial_);
    received_ += whole;
  }

 private:
  std::byte* place(int segment) const {
    const int n = settings_.ranks;
    return data_ + static_cast<std::size_t>((segment % n + n) % n) * segment_;
  }

  const Settings& settings_;
  const int rank_, right_, left_;
  std::vector<std::byte> staging_;
  std::byte* data_ = nullptr;
  std::size_t segment_ = 0, whole_ = 0, sent_ = 0, received_ = 0, partial_ = 0;
};

void all_reduce(std::vector<Ring>& rings, std::vector<float>& data) {
  const std::size_t share = data.size() / rings.size();
  for (std::size_t i = 0; i < rings.size(); ++i) rings[i].begin(data.data() + i * share, share * 4);
  std::vector<pollfd> fds;
  for (;;) {
    fds.clear();
    bool done = true;
    for (auto& ring : rings) {
      ring.ask(fds);
      done = done && ring.done();
    }
    if (done) return;
    if (::poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) fail("poll");
    for (std::size_t i = 0; i < rings.size(); ++i) {
      if (fds[2 * i].revents) rings[i].read();
      if (fds[2 * i + 1].revents) rings[i].write();
    }
  }
}

void measure(const Settings& settings, Shared& shared, int rank, std::vector<Ring>& rings,
             std::size_t bytes) {
  std::vector<float> data(bytes / 4, 1);
  const auto agree = [&](double own) {
    shared.figure[rank] = own;
    barrier(shared, settings.ranks);
    const double most = *std::max_element(shared.figure, shared.figure + settings.ranks);
    barrier(shared, settings.ranks);
    return most;
  };
  all_reduce(rings, data);
  if (std::any_of(data.begin(), data.begin() + 1000,
                  [&](float value) { return value != static_cast<float>(settings.ranks); })) {
    std::fprintf(stderr, "a wrong sum\n");
    std::exit(1);
  }
  std::fill(data.begin(), data.end(), 0.0f);
  double longest = 0;
  for (int i = 0; i < 3; ++i) {
    barrier(shared, settings.ranks);
    const double begun = now();
    all_reduce(rings, data);
    longest = now() - begun;
  }
  const int runs =
      static_cast<int>(std::clamp(settings.seconds / agree(longest), 5.0, 1.0 * kMostRuns));
  const double cpu = cpu_seconds(), begun = now();
  double before = begun;
  for (int i = 0; i < runs; ++i) {
    all_reduce(rings, data);
    const double after = now();
    shared.spans[rank][i] = after - before;
    before = after;
  }
  const double whole = agree(before - begun);
  shared.figure[rank] = cpu_seconds() - cpu;
  barrier(shared, settings.ranks);
  if (rank == 0) {
    std::vector<double> spans;
    double all_cpu = 0;
    for (int r = 0; r < settings.ranks; ++r) all_cpu += shared.figure[r];
    for (int i = 0; i < runs; ++i) {
      double most = 0;
      for (int r = 0; r < settings.ranks; ++r) most = std::max(most, shared.spans[r][i]);
      spans.push_back(most);
    }
    std::sort(spans.begin(), spans.end());
    std::printf("{\"bytes\": %zu, \"median_s\": %.9g, \"mean_s\": %.9g, \"cpu_s\": %.9g}\n", bytes,
                spans[spans.size() / 2], whole / runs, all_cpu / runs);
    std::fflush(stdout);
  }
  barrier(shared, settings.ranks);
}

Settings parse(int argc, char** argv) {
  Settings settings;
  if (argc < 4) {
    std::fprintf(stderr, "see the beginning of loopback_bound.cpp\n");
    std::exit(2);
  }
  settings.ranks = std::clamp(std::atoi(argv[1]), 2, kMostRanks);
  settings.seconds = std::atof(argv[2]);
  for (int i = 3; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return ++i < argc ? std::strtoull(argv[i], nullptr, 10) : 0; };
    if (word == "--read")
      settings.read = value();
    else if (word == "--write")
      settings.write = value();
    else if (word == "--buffer")
      settings.buffer = static_cast<int>(value());
    else if (word == "--congestion")
      settings.congestion = ++i < argc ? argv[i] : "";
    else if (word == "--connections")
      settings.connections = static_cast<int>(value());
    else
      settings.sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  }
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse(argc, argv);
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("mmap");
  auto& shared = *new (memory) Shared;
  // For each ring: from each rank to its right.
  std::vector<std::vector<std::array<int, 2>>> links(
      static_cast<std::size_t>(settings.connections));
  for (auto& ring : links) {
    ring.resize(static_cast<std::size_t>(settings.ranks));
    for (auto& ends : ring) connect_pair(ends.data(), settings);
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < settings.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) fail("fork");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    std::vector<Ring> rings;
    for (const auto& ring : links) {
      const int n = settings.ranks;
      rings.emplace_back(settings, rank, ring[static_cast<std::size_t>(rank)][0],
                         ring[static_cast<std::size_t>((rank + n - 1) % n)][1]);
    }
    for (const std::size_t bytes : settings.sizes) measure(settings, shared, rank, rings, bytes);
    std::exit(0);
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    worst = std::max(worst, status == 0 ? 0 : 1);
  }
  return worst;
}
