#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"

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

// The signals of a StopRequest.

constexpr std::array<int, 2> kStopSignals = {SIGINT, SIGTERM};

std::atomic<bool> stop_requested{false};
std::atomic<int> first_requested{0};
std::atomic<long> first_milliseconds{0};
std::array<struct sigaction, kStopSignals.size()> replaced;

long milliseconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
}

extern "C" void on_stop_signal(int signal) {
  constexpr long kSameKeystroke = 1000;
  const long now = milliseconds_now();
  if (!stop_requested.exchange(true)) {
    first_milliseconds = now;
    first_requested = signal;
  } else if (now - first_milliseconds >= kSameKeystroke) {
    ::_exit(kInterruptedStatus);
  }
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

StopRequest::StopRequest() {
  stop_requested = false;
  first_requested = 0;
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &action, &replaced[i]);
  }
}

StopRequest::~StopRequest() {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    ::sigaction(kStopSignals[i], &replaced[i], nullptr);
  }
}

bool StopRequest::by_term() const noexcept {
  return stop_requested && first_requested == SIGTERM;
}

bool StopRequest::requested() const noexcept {
  return stop_requested;
}

}  // namespace bimetal::launch
