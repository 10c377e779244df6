#pragma once
// How to start this program on another machine by the system's ssh, and what it means when that
// fails. Pure.

#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {

struct SshOptions {
  std::optional<int> port;           ///< of sshd; else ssh's own settings decide
  std::vector<std::string> options;  ///< each as after ssh's -o: "StrictHostKeyChecking=accept-new"
  int connect_timeout_s = 10;
  /// Bimetal's path on the other machines; empty: the path that it has here, else that in PATH
  /// there.
  std::string remote_program;
};

/// ssh's arguments (without the program itself) that start `bimetal launch-agent` on `host`. ssh
/// asks nothing: what needs a password fails. `own_program` is this program's path.
std::vector<std::string> ssh_arguments(const SshOptions& ssh, const std::string& host,
                                       const std::string& own_program);

/// Why ssh, or what it started on `host`, ended before it had said anything; `said` is what came on
/// standard error.
Error explain_ssh_failure(const SshOptions& ssh, const std::string& host, const ProcessExit& exit,
                          const std::string& said);

/// `text` as one word of a POSIX shell.
std::string shell_quoted(const std::string& text);

}  // namespace bimetal::launch
