#pragma once
// A child process with an owner. None outlives its Process, none stays a zombie.
//
// Windows knows no signals; their substitutes there are described below, and numbers are Linux's,
// since they travel between hosts.
//
// Signals: the launcher's view of them, requests to stop and the ends of children; and the rank's
// side of Ctrl-C, an orderly end between two steps with a checkpoint.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/launch/local/pipe.h"

namespace bimetal::launch {

#ifdef _WIN32
inline constexpr int kKillSignal = 9, kBusSignal = 7;
#else
inline constexpr int kKillSignal = SIGKILL, kBusSignal = SIGBUS;
#endif

/// How a process ended. On Windows a process ends with a number alone. There `signal` is set if the
/// number is one of Windows' own (an access violation is SIGSEGV, an end by Ctrl-C SIGINT) or this
/// program has ended the process. Other programs that end a process choose its status.
struct ProcessExit {
  int status = 0;  ///< exit status, where it ended by itself
  int signal = 0;  ///< the signal that killed it, else 0
};

/// "was killed by signal 9 (Killed)", "ended with exit status 3".
std::string how_it_ended(const ProcessExit& exit);

/// Whether this is a signal that nobody sends to stop a program.
bool is_fatal(int signal);

struct ProcessCommand {
  std::vector<std::string> argv;  ///< argv[0] is the path of the program
  /// Added to this process's environment, or in place of values there.
  std::vector<std::pair<std::string, std::string>> environment;
  /// Descriptors handed on: {number in the child, number here}. Windows: to 0, 1 and 2 alone.
  std::vector<std::pair<int, int>> descriptors;
  /// Linux: the system kills it when the thread that starts it ends. Windows: it dies with this
  /// process in any case, with the processes that it has started.
  bool dies_with_starter = false;
};

/// Move-only; not thread-safe.
class Process {
 public:
  /// Starts the program in a process group of its own, so that a terminal's Ctrl-C does not reach
  /// it, with standard input empty and default signal handling. On Windows the group is a job
  /// object with a console of its own, which shows nowhere. Error(System) names the program.
  static Process start(const ProcessCommand& command);

  /// Kills the process and all of its group if it still runs.
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  int pid() const noexcept { return pid_; }

  /// How it ended, or nothing while it runs. All processes left in its group are then killed.
  std::optional<ProcessExit> poll();

  /// Sends `signal` to the process, or to its whole group. No-op once it has ended. Windows: to the
  /// group in either case; SIGINT is Ctrl-C, for which this process leaves its own console and from
  /// then on hears of none of its keys; any other signal ends it at once.
  void send(int signal);
  void send_to_group(int signal);

 private:
  explicit Process(int pid) : pid_(pid) {}
  void kill_and_reap() noexcept;

  int pid_ = -1;
#ifdef _WIN32
  std::shared_ptr<void> process_, job_;  ///< handles; closing the job's kills all that is in it
#endif
  std::optional<ProcessExit> exit_;
};

/// Path of the program that this process runs.
std::filesystem::path own_program();

/// "Killed", "Segmentation fault"…
std::string signal_name(int signal);

// Finds programs as a shell would, and the Python that runs the code written in Python
// (find_program.cpp).

/// Path of the program: `name` itself if it names a folder, else the first of that name in the
/// folders of PATH; on Windows with its ending. Error(InvalidArgument) names the host and the
/// folders searched.
std::string find_program(const std::string& name);

/// BIMETAL_PYTHON, else the one that a build folder's `make setup` has made, else the system's
/// python3.
std::string python_program();

/// The package of this program's build folder, if it has one, comes before one that is installed:
/// for the processes that this one starts.
void prefer_own_package();

/// The command as it is to be run: a file whose name ends in ".py" by that Python, which then has
/// that package; any other by its path, as find_program() has it. Errors: its.
std::vector<std::string> runnable(std::vector<std::string> command);

// For ranks that another launcher than ours has started: mpirun, torchrun.

/// If the environment says that mpirun (Open MPI, MPICH and its kin) or torchrun has started this
/// process, watches that process on a thread of its own, through any shells and wrappers in
/// between. When it has ended, however it did, this process gets a SIGTERM, and ends a few seconds
/// later at the latest, whatever its other threads do. Ranks that were started by hand have nobody
/// to end with. Again it does nothing. Thread-safe.
void end_with_launcher();

// A launcher that somebody else's process stands in front of (Windows, where no process can take
// the place of another).

/// From now on this process ends at once when the one with number `pid` does, however that happens,
/// and with it all that it has started. Error(System) if there is no such process.
void end_with_process(int pid);

/// While one exists, SIGINT, SIGTERM and SIGHUP are counted in place of ending the process (SIGHUP
/// unless it is ignored: a job started by nohup outlives its terminal). At most one exists at a
/// time; use it from one thread. On Windows a console tells its programs: Ctrl-C counts as SIGINT,
/// Ctrl-Break, its window's closing, logging off and shutting down as SIGTERM; after the last three
/// Windows ends the process within seconds.
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
/// same Ctrl-C, which reaches a rank twice when its launcher forwards the signal that the terminal
/// already sent.) One at a time.
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
