#include "bimetal/net/token.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "bimetal/cli/command.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/monitor/pages.h"

namespace bimetal::cli {
namespace {

constexpr const char* kTokenExample = R"(Example:
  bimetal token bimetal.token
  scp -p bimetal.token pc.local:
  bimetal token --monitor bimetal.token monitor.token
Without FILE the token is printed.)";

struct TokenArguments {
  std::string path;
  std::string monitor_of;  ///< file of a job's token; empty: a new token is made
};

int token_command(const TokenArguments& arguments) {
  const auto& path = arguments.path;
  const bool of_monitor = !arguments.monitor_of.empty();
  const auto token = of_monitor
                         ? monitor::monitor_token(net::Token::from_file(arguments.monitor_of))
                         : net::Token::generate();
  const auto line = std::string(token.text()) + "\n";
  Terminal terminal;
  if (path.empty()) {
    terminal.print(token.text());
    return kSuccess;
  }
  // Never readable by others, not even between its making and a chmod; an old token stays.
  const launch::FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) throw system_error(fmt::format("cannot make token file {}", path), errno);
  if (!launch::write_all(file, line)) {
    throw system_error(fmt::format("cannot write token file {}", path), errno);
  }
  terminal.print(of_monitor
                     ? fmt::format("wrote {}: for Prometheus, as credentials_file", path)
                     : fmt::format("wrote {}; copy it to the other machines by a safe way (scp), "
                                   "and give it to both with --token-file",
                                   path));
  return kSuccess;
}

}  // namespace

void add_token(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<TokenArguments>();
  auto* command =
      app.add_subcommand("token", "Make the shared secret of a job on several machines");
  command
      ->add_option("file", arguments->path,
                   "Where to write it (mode 600); an existing file is kept")
      ->type_name("FILE");
  command
      ->add_option("--monitor", arguments->monitor_of,
                   "Not a new one, but the token by which Prometheus reads the monitor of the job "
                   "that has this one")
      ->type_name("TOKEN_FILE");
  command->footer(kTokenExample);
  command->callback(
      [arguments, &action] { action = [arguments] { return token_command(*arguments); }; });
}

}  // namespace bimetal::cli
