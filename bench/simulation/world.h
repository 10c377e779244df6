#pragma once
// One process that stands for many, each on a host of its own: threads are fibers, time is virtual,
// and sockets are links with a latency and a rate. A program that is linked with it runs Bimetal's
// own code unchanged, since it takes the place of the system's functions for threads, clocks and
// sockets (threads.cpp, sockets.cpp). Linux alone; one thread of the system's in all.
//
// Computing takes no time here. A message takes time: for the hosts that send and receive it to
// handle it, to go through their network cards, and on its way.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace simulation {

using Nanoseconds = std::int64_t;

/// The properties of all links and hosts.
struct Links {
  double latency_s = 50e-6;       ///< one way, between two hosts
  double loopback_s = 5e-6;       ///< one way, within one
  double bytes_per_s = 1.25e9;    ///< of each host's network card, each way
  double message_s = 2e-6;        ///< for which a message keeps its sender busy, and its receiver
  std::size_t window = 4u << 20;  ///< bytes of one connection that may be on their way, or unread
};

/// The traffic of a host's sockets.
struct Traffic {
  std::uint64_t messages_sent = 0, messages_received = 0;  ///< calls that sent or brought bytes
  std::uint64_t bytes_sent = 0, bytes_received = 0;
  std::uint64_t connections = 0;  ///< made or taken
};

/// A simulated process, the only one of its host.
struct Process {
  int number = 0;
  std::uint32_t address = 0;  ///< IPv4, in the order of this machine's bytes
  bool alive = true;
  bool cut_off = false;  ///< nothing goes to it or comes from it any more
  bool busy = false;     ///< its first fiber has not ended
  std::string error;     ///< which left that fiber
  Traffic traffic = {};
  Nanoseconds sends_until = 0, receives_until = 0;  ///< of its network card

  std::string host() const;  ///< its address as text
};

/// The world begins with the first process.
Process& start(std::function<void()> main);
void set_links(const Links& links);

/// Acts as SIGKILL: the process's system closes its sockets.
void kill(Process& process);
/// Its machine is off: nobody says anything.
void switch_off(Process& process);

/// Runs until `done`, or until nothing can happen any more. Whether it was `done`.
bool run_until(const std::function<bool()>& done);

Nanoseconds now();
inline double seconds() {
  return static_cast<double>(now()) * 1e-9;
}

// ---- between threads.cpp and sockets.cpp
// ----------------------------------------------------------

struct Fiber;

/// Fibers that wait for the same thing.
using Waiters = std::vector<Fiber*>;

Process* current_process();  ///< none where no fiber runs
/// Until woken; false where that has not come by `until` (negative: for ever).
bool wait_in(Waiters& waiters, Nanoseconds until);
void wake_all(Waiters& waiters);
/// `action` happens at that time. The number takes it back.
std::uint64_t at(Nanoseconds when, std::function<void()> action);
void take_back(Nanoseconds when, std::uint64_t number);

void close_all_of(Process& process);  ///< sockets.cpp
const Links& links();

}  // namespace simulation
