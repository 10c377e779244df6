#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bimetal/launch/local/process.h"
#ifdef __linux__
#include <sys/prctl.h>
#endif
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

#include <cerrno>
#include <map>
#include <system_error>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::launch {
namespace {

/// All signals held back, until destroyed: none may reach a child that still has our handlers.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t all;
    sigfillset(&all);
    ::sigprocmask(SIG_SETMASK, &all, &before_);
  }
  ~HeldSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// The code below runs in the child, which has a copy of one thread only: nothing but calls that are
// safe in a signal handler.

bool bind_to(pid_t starter) {
#ifdef __linux__
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
#endif
  return ::getppid() == starter;  // else it has ended before
}

void default_signals() {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

bool take_descriptors(const std::vector<std::pair<int, int>>& descriptors) {
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || (nothing != STDIN_FILENO && ::dup2(nothing, STDIN_FILENO) < 0)) return false;
  if (nothing != STDIN_FILENO) ::close(nothing);
  for (const auto& [child, ours] : descriptors) {
    if (::dup2(ours, child) < 0) return false;
  }
  return true;
}

[[noreturn]] void become(pid_t starter, char* const* arguments, char* const* environment,
                         const std::vector<std::pair<int, int>>& descriptors, int report) {
  ::setpgid(0, 0);
  if (!bind_to(starter)) ::_exit(127);
  if (take_descriptors(descriptors)) {
    default_signals();
    ::execve(arguments[0], arguments, environment);
  }
  const int error = errno;
  [[maybe_unused]] const auto written = ::write(report, &error, sizeof(error));
  ::_exit(127);
}

/// Starts a program in a process group of its own with empty standard input, default signals and
/// these {number in the child, number here} descriptors. On Linux it is killed when the calling
/// thread ends, however that happens; elsewhere the system has no such thing, and the caller must
/// see to its end. Returns 0 and sets `pid`, or returns the system's error number.
int spawn_bound(pid_t& pid, char* const* arguments, char* const* environment,
                const std::vector<std::pair<int, int>>& descriptors) {
  auto report = Pipe::create();  // closed by exec; the number of the error if there was none
  const pid_t starter = ::getpid();
  const HeldSignals held;
  const pid_t child = ::fork();
  if (child < 0) return errno;
  if (child == 0) become(starter, arguments, environment, descriptors, report.write.number());
  report.write.close();
  int error = 0;
  ssize_t count = 0;
  while ((count = ::read(report.read.number(), &error, sizeof(error))) < 0 && errno == EINTR) {
  }
  if (count != sizeof(error)) {
    pid = child;
    return 0;
  }
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return error;
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::map<std::string, std::string> variables;
  for (const auto& [name, value] : own_environment()) variables[name] = value;
  for (const auto& [name, value] : added) variables[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : variables) entries.push_back(name + "=" + value);
  return entries;
}

/// The null-terminated array of C strings that exec wants; points into `strings`.
std::vector<char*> c_array(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (auto& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct SpawnAttributes {
  SpawnAttributes() {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&value);
    posix_spawnattr_setflags(
        &value, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setpgroup(&value, 0);
    posix_spawnattr_setsigdefault(&value, &all);
    posix_spawnattr_setsigmask(&value, &none);
  }
  ~SpawnAttributes() { posix_spawnattr_destroy(&value); }
  posix_spawnattr_t value;
};

struct SpawnFiles {
  explicit SpawnFiles(const std::vector<std::pair<int, int>>& descriptors) {
    posix_spawn_file_actions_init(&value);
    posix_spawn_file_actions_addopen(&value, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    for (const auto& [child, ours] : descriptors) {
      posix_spawn_file_actions_adddup2(&value, ours, child);
    }
  }
  ~SpawnFiles() { posix_spawn_file_actions_destroy(&value); }
  posix_spawn_file_actions_t value;
};

}  // namespace

Process Process::start(const ProcessCommand& command) {
  auto arguments = command.argv;
  auto variables = environment_with(command.environment);
  const auto argv = c_array(arguments), envp = c_array(variables);
  pid_t pid = -1;
  int error = 0;
  if (command.dies_with_starter) {
    error = spawn_bound(pid, argv.data(), envp.data(), command.descriptors);
  } else {
    const SpawnFiles files(command.descriptors);
    const SpawnAttributes attributes;
    error = ::posix_spawn(&pid, arguments.at(0).c_str(), &files.value, &attributes.value,
                          argv.data(), envp.data());
  }
  if (error != 0) throw system_error(fmt::format("cannot start {}", arguments[0]), error);
  return Process(pid);
}

Process::~Process() {
  kill_and_reap();
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), exit_(other.exit_) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(exit_, other.exit_);
  return *this;
}

std::optional<ProcessExit> Process::poll() {
  if (exit_ || pid_ < 0) return exit_;
  siginfo_t info{};
  // Looked at before it is reaped: until then nothing else can get its number, and killing its
  // group cannot hit a stranger.
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  exit_ =
      WIFSIGNALED(status) ? ProcessExit{0, WTERMSIG(status)} : ProcessExit{WEXITSTATUS(status), 0};
  return exit_;
}

void Process::send(int signal) {
  if (pid_ > 0 && !exit_) ::kill(pid_, signal);
}

void Process::send_to_group(int signal) {
  if (pid_ > 0 && !exit_) ::kill(-pid_, signal);
}

void Process::kill_and_reap() noexcept {
  if (pid_ < 0 || exit_) return;
  ::kill(-pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::filesystem::path own_program() {
#ifdef __APPLE__
  std::string path(4096, '\0');
  std::uint32_t size = static_cast<std::uint32_t>(path.size());
  if (_NSGetExecutablePath(path.data(), &size) != 0) {
    throw Error(ErrorCode::System, "cannot find this program's own path");
  }
  return std::filesystem::canonical(path.c_str());
#else
  std::error_code error;
  auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return path;
  throw system_error(
      "cannot find this program's own path, which /proc/self/exe tells; is /proc mounted?", error);
#endif
}

std::string signal_name(int signal) {
  const char* name = ::strsignal(signal);
  return name ? name : "unknown";
}

}  // namespace bimetal::launch
