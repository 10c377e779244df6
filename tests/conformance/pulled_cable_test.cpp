// Ranks on hosts of their own (network namespaces with a cable each to one switch), of which one
// loses its cable: no FIN, no reset, nothing but silence.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSize = 3;
constexpr std::uint16_t kPort = 29400;
constexpr std::chrono::seconds kPatience{60};
// Promised is one second; a machine that is busy with other tests gets some more.
constexpr double kLimitSeconds = 2;

const net::Token kToken = net::Token::from_text("the token of this job");

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

std::string address_of(int rank) {
  return fmt::format("10.77.0.{}", rank + 1);
}

double now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// A line of its own for every event; short enough to be written in one piece.
void tell(int pipe, const std::string& line) {
  const std::string text = line + "\n";
  if (::write(pipe, text.data(), text.size()) < 0) ::_exit(4);
}

/// What a rank does on its host: calls in turn, or waits in one where `idle`.
void live(int rank, bool idle, int pipe) {
  const auto deadline = Deadline::after(kPatience);
  const net::Endpoint meeting{address_of(0), kPort};
  std::optional<rendezvous::StoreServer> server;
  if (rank == 0) server.emplace(meeting, kToken);
  const auto store = rendezvous::connect_store(meeting, kToken, deadline);
  rendezvous::BootstrapOptions options;
  options.token = kToken;
  options.listen_host = address_of(rank);
  options.peer_timeout = std::chrono::seconds(1);
  auto group = comm::make_group(rendezvous::connect_mesh(*store, rank, kSize, options, deadline));
  group.barrier(deadline).wait();
  tell(pipe, "running");
  try {
    std::vector<float> data(1 << 16, 0);
    if (idle) group.recv(comm::buffer(data), (rank + 1) % kSize).wait();
    for (;;) group.all_reduce(comm::buffer(data)).wait();
  } catch (const Error& error) {
    tell(pipe, fmt::format("{} {} {:.6f} {}", to_string(error.code()), error.rank().value_or(-1),
                           now(), error.what()));
  }
}

/// A process in a network namespace of its own, and what it tells.
class Host {
 public:
  Host(int rank, bool idle) : rank_(rank) {
    std::array<int, 2> told, cabled;
    if (::pipe(told.data()) != 0 || ::pipe(cabled.data()) != 0) throw system_error("pipe", errno);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(2 * kPatience.count());  // whatever becomes of the test
      if (::unshare(CLONE_NEWNET) != 0) ::_exit(5);
      tell(told[1], "apart");
      char byte;
      if (::read(cabled[0], &byte, 1) != 1) ::_exit(6);
      if (!run(fmt::format("ip addr add {}/24 dev eth0 && ip link set eth0 up && "
                           "ip link set lo up",
                           address_of(rank)))) {
        ::_exit(7);
      }
      try {
        live(rank, idle, told[1]);
      } catch (const std::exception& error) {
        tell(told[1], fmt::format("failed {}", error.what()));
      }
      ::_exit(0);
    }
    ::close(told[1]);
    ::close(cabled[0]);
    told_ = told[0];
    cabled_ = cabled[1];
  }
  ~Host() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(told_);
    ::close(cabled_);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// Lays the cable from the switch.
  bool connect() const {
    return run(fmt::format("ip link add cable{0} type veth peer name eth0 netns {1} && "
                           "ip link set cable{0} master switch && ip link set cable{0} up",
                           rank_, pid_)) &&
           ::write(cabled_, "c", 1) == 1;
  }

  /// The next line; empty if none comes.
  std::string line() {
    for (;;) {
      if (const auto end = unread_.find('\n'); end != std::string::npos) {
        const std::string text = unread_.substr(0, end);
        unread_.erase(0, end + 1);
        return text;
      }
      pollfd ready{told_, POLLIN, 0};
      if (::poll(&ready, 1, 1000 * kPatience.count()) <= 0) return {};
      std::array<char, 1024> bytes;
      const auto size = ::read(told_, bytes.data(), bytes.size());
      if (size <= 0) return {};
      unread_.append(bytes.data(), static_cast<std::size_t>(size));
    }
  }

 private:
  const int rank_;
  pid_t pid_ = -1;
  int told_ = -1;
  int cabled_ = -1;
  std::string unread_;
};

/// Into a network namespace of our own, as its root.
bool enter_namespace() {
  if (::geteuid() == 0) return ::unshare(CLONE_NEWNET) == 0;
  const auto user = ::geteuid();
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  std::ofstream map("/proc/self/uid_map");
  map << "0 " << user << " 1" << std::flush;
  return map.good();
}

constexpr int kGood = 0, kBad = 1, kNoNamespaces = 77;

/// The whole experiment, in a process of its own whose namespace holds the switch.
int pull_a_cable(bool idle) {
  constexpr int kVictim = 1;
  if (!enter_namespace()) return kNoNamespaces;
  if (!run("ip link add switch type bridge && ip link set switch up")) return kNoNamespaces;
  std::vector<std::unique_ptr<Host>> hosts;
  for (int rank = 0; rank < kSize; ++rank) hosts.push_back(std::make_unique<Host>(rank, idle));
  for (const auto& host : hosts) {
    if (host->line() != "apart" || !host->connect()) return kNoNamespaces;
  }
  for (const auto& host : hosts) {
    if (const auto line = host->line(); line != "running") {
      fmt::print(stderr, "a rank is not running: {}\n", line);
      return kBad;
    }
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  const double pulled = now();
  if (!run(fmt::format("ip link set cable{} down", kVictim))) return kBad;
  int result = kGood;
  for (int rank = 0; rank < kSize; ++rank) {
    const std::string line = hosts[static_cast<std::size_t>(rank)]->line();
    int blamed = -1;
    double when = 0;
    const bool lost = std::sscanf(line.c_str(), "peer_lost %d %lf", &blamed, &when) == 2;
    // The victim cannot tell which of the others' cables it is not.
    const bool named = rank == kVictim ? blamed >= 0 && blamed != rank : blamed == kVictim;
    fmt::print("rank {} after {:.3f} s: {}\n", rank, when - pulled, line);
    if (!lost || !named || when - pulled > kLimitSeconds) result = kBad;
  }
  std::fflush(stdout);
  return result;
}

class PulledCable : public ::testing::TestWithParam<bool> {};

TEST_P(PulledCable, EveryRankLosesAPeerAndKnowsWhich) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(pull_a_cable(GetParam()));
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespaces) {
    GTEST_SKIP() << "no network namespaces, or no `ip` command, here";
  }
  EXPECT_EQ(WEXITSTATUS(status), kGood);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PulledCable, ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Idle" : "Busy"; });

}  // namespace
}  // namespace bimetal::testing
