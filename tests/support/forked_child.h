#pragma once
// Runs part of a test in a child process: to kill it, or to take its means away.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>

namespace bimetal::test {

/// Killed and waited for in the end, so that no test leaves a process. The child ends with what
/// `body` returns, or with 99 if it throws. The parent must not run other threads.
class ForkedChild {
 public:
  explicit ForkedChild(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ < 0) throw std::runtime_error("cannot fork");
    if (pid_ > 0) return;
    try {
      _exit(body());
    } catch (...) {
      _exit(99);
    }
  }
  ~ForkedChild() {
    if (pid_ > 0) kill_and_wait();
  }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

  /// Its exit status; -1 if a signal ended it.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  void kill_and_wait() {
    kill(pid_, SIGKILL);
    wait();
  }

 private:
  pid_t pid_;
};

}  // namespace bimetal::test
