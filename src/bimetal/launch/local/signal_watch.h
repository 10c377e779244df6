#pragma once
// The launcher's view of signals: requests to stop, and the ends of children.

#include <chrono>

#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {

/// While one exists, SIGINT, SIGTERM and SIGHUP are counted in place of ending the process (SIGHUP
/// unless it is ignored: a job started by nohup outlives its terminal). At most one exists at a
/// time; use it from one thread. On Windows these are what a console tells its programs: Ctrl-C
/// counts as SIGINT, Ctrl-Break, its window's closing, logging off and shutting down as SIGTERM;
/// after the last three Windows ends the process within seconds.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Requests to stop so far.
  int stop_requests() const noexcept;

  /// SIGINT, SIGTERM or SIGHUP: the first request; 0 before it.
  int first_signal() const noexcept;

  /// Readable when a signal of interest has come: for a WaitSet. SIGCHLD is among them.
  const FileDescriptor& descriptor() const noexcept { return pipe_.read; }

  /// Empties the descriptor.
  void drain();

  /// Sleeps for `span`, or until the next signal.
  void pause(std::chrono::milliseconds span);

 private:
  Pipe pipe_;
};

}  // namespace bimetal::launch
