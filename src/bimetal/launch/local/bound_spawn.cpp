#include "bimetal/launch/local/bound_spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <cerrno>

#include "bimetal/launch/local/pipe.h"

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

// What follows runs in the child, which has a copy of one thread only: nothing but calls that are
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

}  // namespace

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

}  // namespace bimetal::launch
