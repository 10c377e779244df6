#include "bimetal/cli/token.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>

#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/pipe.h"
#include "bimetal/net/token.h"

namespace bimetal::cli {
namespace {

constexpr const char* kTokenExample = R"(Example:
  bimetal token bimetal.token
  scp -p bimetal.token pc.local:
Without FILE the token is printed.)";

int token_command(const std::string& path) {
  const auto token = net::Token::generate();
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
  terminal.print(
      fmt::format("wrote {}; copy it to the other machines by a safe way (scp), and "
                  "give it to both with --token-file",
                  path));
  return kSuccess;
}

}  // namespace

void add_token(CLI::App& app, Action& action) {
  auto path = std::make_shared<std::string>();
  auto* command =
      app.add_subcommand("token", "Make the shared secret of a job on several machines");
  command->add_option("file", *path, "Where to write it (mode 600); an existing file is kept")
      ->type_name("FILE");
  command->footer(kTokenExample);
  command->callback([path, &action] { action = [path] { return token_command(*path); }; });
}

}  // namespace bimetal::cli
