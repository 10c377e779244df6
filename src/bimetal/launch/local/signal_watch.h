#pragma once
// Signals: the launcher's view of them, requests to stop and the ends of children; and the rank's
// side of Ctrl-C, an orderly end between two steps with a checkpoint.

#include <chrono>
#include <string>

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
  void drain() {
    std::string ignored;
    read_available(pipe_.read, ignored);
  }

  /// Sleeps for `span`, or until the next signal.
  void pause(std::chrono::milliseconds span) {
    WaitSet signal;
    signal.add_readable(pipe_.read.number());
    signal.wait(span);
    drain();
  }

 private:
  Pipe pipe_;
};

/// Exit status of a rank that was asked to stop, as shells give it to a program ended by Ctrl-C.
inline constexpr int kInterruptedStatus = 130;

/// POSIX. While one exists, the first SIGINT or SIGTERM only sets requested(); another one, a
/// second or more later, ends the process at once with kInterruptedStatus. (Sooner ones are the
/// same Ctrl-C, which reaches a rank twice when its launcher forwards what the terminal already
/// sent.) One at a time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  bool requested() const noexcept;
  /// The first was SIGTERM.
  bool by_term() const noexcept;
};

}  // namespace bimetal::launch
