#pragma once
// The launcher's end of the way to one host: a process here (the agent itself, or ssh, which starts
// it there) and the messages that go through it.

#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {

// How to start this program on another machine by the system's ssh, and the meaning of a failure.
// Pure.

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

/// The reason why ssh, or the program it started on `host`, ended before it had said anything.
/// `said` is its standard error.
Error explain_ssh_failure(const SshOptions& ssh, const std::string& host, const ProcessExit& exit,
                          const std::string& said);

/// `text` as one word of a POSIX shell.
std::string shell_quoted(const std::string& text);

/// Use from one thread. When it is destroyed, the agent learns that its launcher is gone and kills
/// its ranks.
class HostConnection {
 public:
  /// Starts the agent: directly if the host is this machine, else by ssh. Error(System) if that is
  /// not possible at all; later failures show in ended().
  HostConnection(const std::string& host, bool here, const SshOptions& ssh);

  const std::string& host() const noexcept { return host_; }
  bool here() const noexcept { return here_; }

  void say(const Message& message) { outgoing_.push(encode_message(message)); }

  /// The descriptors to wait for. The agent's is left out unless its words are wanted (there is
  /// room for output).
  void add_to(WaitSet& news, bool wanted) const;

  /// Sends as much as can be sent, and returns the agent's messages since, unless they are not
  /// wanted now: while nobody listens, nobody is silent either. Error(CorruptData).
  std::vector<Message> exchange(bool wanted);

  /// The text that ssh, or the program it started, has printed to standard error since the agent
  /// greeted.
  std::string take_errors();

  std::chrono::nanoseconds silent_for() const { return Deadline::Clock::now() - last_heard_; }

  /// Whether nothing more will come: the process has ended and all of its words have been read.
  bool ended() const noexcept { return exit_ && !from_agent_; }

  /// Why it ended too early. Only after ended().
  Error explain() const;

  /// The agent is to kill its ranks and end.
  void hang_up() { to_agent_.close(); }

 private:
  void find_greeting(std::string& bytes);

  std::string host_;
  bool here_;
  SshOptions ssh_;
  FileDescriptor to_agent_, from_agent_, errors_;
  std::optional<Process> process_;
  std::optional<ProcessExit> exit_;
  OutgoingBytes outgoing_;
  MessageReader reader_;
  bool greeted_ = false;
  std::string before_greeting_, said_;
  Deadline::Clock::time_point last_heard_ = Deadline::Clock::now();
};

}  // namespace bimetal::launch
