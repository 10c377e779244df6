#include <windows.h>

#include <atomic>
#include <csignal>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {
namespace {

// The console calls the handler on a thread of its own.
std::atomic<const Pipe*> watch_pipe{nullptr};
std::atomic<int> console_stops{0};
std::atomic<int> first_console_stop{0};

BOOL WINAPI on_console_event(DWORD event) {
  const auto* const pipe = watch_pipe.load();
  if (pipe == nullptr) return FALSE;
  if (console_stops.fetch_add(1) == 0) {
    first_console_stop = event == CTRL_C_EVENT ? SIGINT : SIGTERM;
  }
  write_all(pipe->write, std::string(1, '\0'));
  // For other events Windows ends the process as soon as this returns.
  if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT) Sleep(INFINITE);
  return TRUE;
}

}  // namespace

SignalWatch::SignalWatch() : pipe_(Pipe::create()) {
  const Pipe* none = nullptr;
  if (!watch_pipe.compare_exchange_strong(none, &pipe_)) {
    throw Error(ErrorCode::Internal, "two SignalWatch objects at a time");
  }
  console_stops = 0;
  first_console_stop = 0;
  SetConsoleCtrlHandler(on_console_event, TRUE);
}

SignalWatch::~SignalWatch() {
  SetConsoleCtrlHandler(on_console_event, FALSE);
  watch_pipe = nullptr;
}

int SignalWatch::stop_requests() const noexcept {
  return console_stops;
}

int SignalWatch::first_signal() const noexcept {
  return first_console_stop;
}

}  // namespace bimetal::launch
