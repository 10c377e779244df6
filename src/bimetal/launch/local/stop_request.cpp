#include "bimetal/launch/local/stop_request.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>

namespace bimetal::launch {
namespace {

constexpr std::array<int, 2> kStopSignals = {SIGINT, SIGTERM};

// Globals, since a signal handler can reach nothing else.
std::atomic<bool> stop_requested{false};
std::atomic<int> first_signal{0};
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
    first_signal = signal;
  } else if (now - first_milliseconds >= kSameKeystroke) {
    ::_exit(kInterruptedStatus);
  }
}

}  // namespace

StopRequest::StopRequest() {
  stop_requested = false;
  first_signal = 0;
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
  return stop_requested && first_signal == SIGTERM;
}

bool StopRequest::requested() const noexcept {
  return stop_requested;
}

}  // namespace bimetal::launch
