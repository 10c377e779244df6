#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/signal_watch.h"

namespace bimetal::launch {
namespace {

constexpr std::array<int, 4> kWatched = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};

// A signal handler can reach nothing but globals, and may only touch lock-free ones.
std::atomic<int> wake_descriptor{-1};
std::atomic<int> stop_count{0};
std::atomic<int> first_stop_signal{0};
std::array<struct sigaction, kWatched.size()> previous;

extern "C" void on_signal(int signal) {
  const int saved_errno = errno;
  if (signal != SIGCHLD && stop_count.fetch_add(1) == 0) first_stop_signal = signal;
  const char byte = 0;
  [[maybe_unused]] const auto written = ::write(wake_descriptor.load(), &byte, 1);
  errno = saved_errno;
}

}  // namespace

SignalWatch::SignalWatch() : pipe_(Pipe::create()) {
  int none = -1;
  if (!wake_descriptor.compare_exchange_strong(none, pipe_.write.number())) {
    throw Error(ErrorCode::Internal, "two SignalWatch objects at a time");
  }
  set_nonblocking(pipe_.read);
  set_nonblocking(pipe_.write);
  stop_count = 0;
  first_stop_signal = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kWatched.size(); ++i) {
    ::sigaction(kWatched[i], &action, &previous[i]);
    const bool by_nohup = kWatched[i] == SIGHUP && previous[i].sa_handler == SIG_IGN;
    if (by_nohup) ::sigaction(SIGHUP, &previous[i], nullptr);
  }
}

SignalWatch::~SignalWatch() {
  for (std::size_t i = 0; i < kWatched.size(); ++i) {
    ::sigaction(kWatched[i], &previous[i], nullptr);
  }
  wake_descriptor = -1;
}

int SignalWatch::stop_requests() const noexcept {
  return stop_count;
}

int SignalWatch::first_signal() const noexcept {
  return first_stop_signal;
}

}  // namespace bimetal::launch
