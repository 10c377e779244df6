#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/log.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {
namespace {

// Set by a launcher for its ranks, and by nobody by hand.
constexpr const char* kMarks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "TORCHELASTIC_RUN_ID"};
constexpr std::chrono::milliseconds kPause{250};
constexpr std::chrono::seconds kToTell{1};
constexpr std::chrono::seconds kToEnd{5};  // after SIGTERM

/// A process, told from a later one with its number.
struct Watched {
  int pid = 0;
  std::string started;
};

#ifdef __linux__

/// The fields of /proc/PID/stat behind the name: state, parent, …; none if there is no process.
std::vector<std::string> stat_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text(std::istreambuf_iterator<char>(file), {});
  const auto name_ends = text.rfind(')');
  if (name_ends == std::string::npos) return {};
  std::istringstream rest(text.substr(name_ends + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}

constexpr std::size_t kState = 0;
constexpr std::size_t kParent = 1;
constexpr std::size_t kStartTime = 19;

bool was_started_with(int pid, std::string_view mark) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  std::string variable;
  while (std::getline(file, variable, '\0')) {
    const bool named = variable.starts_with(mark) && variable.substr(mark.size()).starts_with('=');
    if (named) return variable.size() > mark.size() + 1;
  }
  return false;
}

/// The nearest process above that was not started with the mark itself.
std::optional<Watched> launcher(std::string_view mark) {
  int pid = ::getppid();
  while (pid > 1) {
    const auto stat = stat_of(pid);
    if (stat.size() <= kStartTime) return std::nullopt;
    if (!was_started_with(pid, mark)) return Watched{pid, stat[kStartTime]};
    pid = std::stoi(stat[kParent]);
  }
  return std::nullopt;
}

bool lives(const Watched& process) {
  const auto stat = stat_of(process.pid);
  return stat.size() > kStartTime && stat[kStartTime] == process.started && stat[kState] != "Z" &&
         stat[kState] != "X";
}

#else

std::optional<Watched> launcher(std::string_view) {
  return ::getppid() > 1 ? std::optional(Watched{::getppid(), {}}) : std::nullopt;
}

bool lives(const Watched& process) {
  return ::getppid() == process.pid;
}

#endif

void watch(const Watched& process) {
  while (lives(process)) std::this_thread::sleep_for(kPause);
  // The thread that takes messages may wait for a lock that the process never gives back. This
  // thread does not.
  std::packaged_task<void()> tell([pid = process.pid] {
    log(LogLevel::error, "the launcher of this rank, process {}, has ended: so does this rank",
        pid);
  });
  const auto told = tell.get_future();
  std::thread(std::move(tell)).detach();
  told.wait_for(kToTell);
  ::kill(::getpid(), SIGTERM);
  std::this_thread::sleep_for(kToEnd);
  ::_exit(128 + SIGTERM);
}

}  // namespace

void end_with_launcher() {
  static std::once_flag once;
  std::call_once(once, [] {
    const auto mark = std::ranges::find_if(kMarks, [](const char* name) {
      const char* value = std::getenv(name);
      return value != nullptr && *value != '\0';
    });
    if (mark == std::end(kMarks)) return;
    if (const auto process = launcher(*mark)) std::thread(watch, *process).detach();
  });
}

}  // namespace bimetal::launch
