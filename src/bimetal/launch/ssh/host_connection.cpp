#include "bimetal/launch/ssh/host_connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>

#include "bimetal/base/unicode/utf8.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::launch {
namespace {

constexpr std::size_t kMostHeardAtOnce = 1 << 20;

std::string find_ssh() {
  try {
    return find_program("ssh");
  } catch (const Error&) {
    throw Error(ErrorCode::InvalidArgument,
                "other hosts are reached by ssh, which is not installed here (Debian: apt-get "
                "install openssh-client)");
  }
}

std::vector<std::string> agent_command(const std::string& host, bool here, const SshOptions& ssh) {
  const auto own = utf8_of_path(own_program());
  if (here) return {own, "launch-agent"};
  std::vector<std::string> command = {find_ssh()};
  const auto arguments = ssh_arguments(ssh, host, own);
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

HostConnection::HostConnection(const std::string& host, bool here, const SshOptions& ssh)
    : host_(host), here_(here), ssh_(ssh) {
  auto input = Pipe::create(), output = Pipe::create(), errors = Pipe::create();
  std::vector<std::pair<int, int>> descriptors = {{STDIN_FILENO, input.read.number()},
                                                  {STDOUT_FILENO, output.write.number()}};
  // The agent here prints only fatal errors. Its output may go to the user as it is.
  if (!here) descriptors.emplace_back(STDERR_FILENO, errors.write.number());
  process_ = Process::start({agent_command(host, here, ssh), {}, descriptors});
  for (auto* ours : {&input.write, &output.read, &errors.read}) set_nonblocking(*ours);
  to_agent_ = std::move(input.write);
  from_agent_ = std::move(output.read);
  if (!here) errors_ = std::move(errors.read);
}

void HostConnection::add_to(WaitSet& news, bool wanted) const {
  if (from_agent_ && wanted) news.add_readable(from_agent_.number());
  if (errors_) news.add_readable(errors_.number());
  if (to_agent_ && !outgoing_.empty()) news.add_writable(to_agent_.number());
}

std::vector<Message> HostConnection::exchange(bool wanted) {
  if (to_agent_ && !outgoing_.write_some(to_agent_.number())) to_agent_.close();
  if (!exit_) exit_ = process_->poll();  // before reading: all it has said can then be read
  if (errors_ && !read_some(errors_, said_, kMostHeardAtOnce)) errors_.close();
  std::string bytes;
  if (from_agent_ && wanted) {
    const bool open = read_some(from_agent_, bytes, kMostHeardAtOnce);
    if (!open || (exit_ && bytes.empty())) from_agent_.close();
  }
  if (!bytes.empty() || !wanted) last_heard_ = Deadline::Clock::now();
  if (!greeted_) find_greeting(bytes);
  reader_.feed(bytes);
  std::vector<Message> messages;
  while (auto message = reader_.next()) messages.push_back(std::move(*message));
  return messages;
}

/// Leaves in `bytes` the text behind the greeting, which is at the beginning of a line.
void HostConnection::find_greeting(std::string& bytes) {
  before_greeting_ += bytes;
  bytes.clear();
  const auto greeting = std::string(kAgentGreeting);
  auto found = before_greeting_.rfind(greeting, 0);
  if (found == std::string::npos) {
    found = before_greeting_.find("\n" + greeting);
    if (found == std::string::npos) return;
    ++found;
  }
  greeted_ = true;
  bytes = before_greeting_.substr(found + greeting.size());
  before_greeting_.clear();
  said_.clear();  // warnings of ssh about something that has worked after all
}

std::string HostConnection::take_errors() {
  return greeted_ ? std::exchange(said_, {}) : std::string();
}

Error HostConnection::explain() const {
  if (!greeted_ && !here_) return explain_ssh_failure(ssh_, host_, *exit_, said_);
  const auto* what = here_ ? "the launcher's agent on this host" : "the ssh connection";
  return {ErrorCode::PeerLost,
          fmt::format("lost host {}: {} {}", host_, what, how_it_ended(*exit_))};
}

namespace {

/// ssh's own exit status where it is ssh that failed, and the shell's where there is no program.
constexpr int kSshFailed = 255, kNoSuchProgram = 127, kNotAProgram = 126;

std::string last_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const auto end = text.rfind('\n');
  return end == std::string::npos ? text : text.substr(end + 1);
}

/// The command that a person would try by hand.
std::string by_hand(const SshOptions& ssh, const std::string& host) {
  return ssh.port ? fmt::format("ssh -p {} {} true", *ssh.port, host)
                  : fmt::format("ssh {} true", host);
}

struct KnownTrouble {
  const char* words;  ///< of ssh
  ErrorCode code;
  const char* meaning;
};

// The words are those of OpenSSH and of the system's errors; the first that fits counts.
constexpr std::array<KnownTrouble, 9> kKnownTroubles = {{
    {"Host key verification failed", ErrorCode::Unauthorized,
     "its host key is unknown here, or has changed; connect once by hand to accept it"},
    {"Permission denied", ErrorCode::Unauthorized,
     "it accepts none of this machine's keys; make one (ssh-keygen) and copy it there "
     "(ssh-copy-id), so that no password is asked for"},
    {"Too many authentication failures", ErrorCode::Unauthorized,
     "it was offered too many keys; name the right one by --ssh-option IdentityFile=FILE"},
    {"Could not resolve hostname", ErrorCode::System,
     "there is no host of that name; check the spelling, or give its address"},
    {"Connection refused", ErrorCode::System,
     "it takes no connections on that port; check that sshd runs there, and on which port "
     "(--ssh-port)"},
    {"No route to host", ErrorCode::System,
     "no network leads there; check that it is switched on and that the address is right"},
    {"Network is unreachable", ErrorCode::System,
     "no network leads there; check this machine's network and that the address is right"},
    {"timed out", ErrorCode::Timeout,
     "it does not answer; check that it is switched on, that the address is right, and that no "
     "firewall blocks the port of ssh"},
    {"Connection closed", ErrorCode::System, "it hangs up; its sshd's log says why"},
}};

}  // namespace

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::vector<std::string> ssh_arguments(const SshOptions& ssh, const std::string& host,
                                       const std::string& own_program) {
  std::vector<std::string> arguments = {"-T", "-o", "BatchMode=yes", "-o",
                                        fmt::format("ConnectTimeout={}", ssh.connect_timeout_s)};
  if (ssh.port) arguments.insert(arguments.end(), {"-p", std::to_string(*ssh.port)});
  for (const auto& option : ssh.options) arguments.insert(arguments.end(), {"-o", option});
  const auto path = shell_quoted(own_program);
  const auto script =
      ssh.remote_program.empty()
          ? fmt::format("if [ -x {0} ]; then exec {0} launch-agent; fi; exec bimetal launch-agent",
                        path)
          : fmt::format("exec {} launch-agent", shell_quoted(ssh.remote_program));
  // A POSIX shell reads this, whatever shell the user has there.
  arguments.insert(arguments.end(), {"--", host, "exec /bin/sh -c " + shell_quoted(script)});
  return arguments;
}

Error explain_ssh_failure(const SshOptions& ssh, const std::string& host, const ProcessExit& exit,
                          const std::string& said) {
  const auto words = last_line(said);
  if (exit.signal != 0) {
    return {ErrorCode::System, fmt::format("ssh to {} was killed by signal {} ({})", host,
                                           exit.signal, signal_name(exit.signal))};
  }
  if (exit.status == kNoSuchProgram || exit.status == kNotAProgram) {
    return {ErrorCode::InvalidArgument,
            fmt::format("{} has no program {}: {}; install the same version of Bimetal there, or "
                        "say where it is by --remote-bimetal PATH",
                        host, ssh.remote_program.empty() ? "bimetal" : ssh.remote_program, words)};
  }
  if (exit.status != kSshFailed) {
    return {ErrorCode::ProtocolMismatch,
            fmt::format("Bimetal on {} ended with exit status {} before it began: {}. Is it the "
                        "same version as here?",
                        host, exit.status, words.empty() ? "it gave no reason" : words)};
  }
  for (const auto& trouble : kKnownTroubles) {
    if (said.find(trouble.words) == std::string::npos) continue;
    return {trouble.code, fmt::format("cannot reach {} by ssh: {} (ssh says: {}; try: {})", host,
                                      trouble.meaning, words, by_hand(ssh, host))};
  }
  return {ErrorCode::System,
          fmt::format("cannot reach {} by ssh: {} (try: {})", host,
                      words.empty() ? "it gives no reason" : words, by_hand(ssh, host))};
}

}  // namespace bimetal::launch
