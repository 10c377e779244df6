#include "bimetal/launch/ssh/host_connection.h"

#include <fmt/format.h>
#include <unistd.h>

#include "bimetal/base/unicode/utf8_path.h"
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
  // The agent here prints nothing but what is fatal; its words may go to the user as they are.
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

/// Leaves in `bytes` what follows the greeting, which stands at the beginning of a line.
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
  said_.clear();  // warnings of ssh about what has worked after all
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

}  // namespace bimetal::launch
