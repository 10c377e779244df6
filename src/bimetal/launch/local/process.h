#pragma once
// A child process with an owner (POSIX). None outlives its Process, none stays a zombie.

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bimetal::launch {

/// How a process ended.
struct ProcessExit {
  int status = 0;  ///< exit status, where it ended by itself
  int signal = 0;  ///< the signal that killed it, else 0
};

struct ProcessCommand {
  std::vector<std::string> argv;  ///< argv[0] is the path of the program
  /// Added to this process's environment, or in place of what is there.
  std::vector<std::pair<std::string, std::string>> environment;
  /// Descriptors handed on: {number in the child, number here}.
  std::vector<std::pair<int, int>> descriptors;
  /// Linux: the system kills it when the thread that starts it ends (bound_spawn.h).
  bool dies_with_starter = false;
};

/// Move-only; not thread-safe.
class Process {
 public:
  /// Starts the program in a process group of its own, so that a terminal's Ctrl-C does not reach
  /// it, with standard input empty and default signal handling. Error(System) names the program.
  static Process start(const ProcessCommand& command);

  /// Kills the process and all of its group if it still runs.
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  int pid() const noexcept { return pid_; }

  /// How it ended, or nothing while it runs. Whatever it left in its group is killed then.
  std::optional<ProcessExit> poll();

  /// Sends `signal` to the process, or to its whole group. No-op once it has ended.
  void send(int signal);
  void send_to_group(int signal);

 private:
  explicit Process(int pid) : pid_(pid) {}
  void kill_and_reap() noexcept;

  int pid_ = -1;
  std::optional<ProcessExit> exit_;
};

/// Path of the program that this process runs.
std::filesystem::path own_program();

/// "Killed", "Segmentation fault"…
std::string signal_name(int signal);

}  // namespace bimetal::launch
