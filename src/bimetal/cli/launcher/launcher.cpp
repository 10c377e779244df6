#include "bimetal/cli/launcher/launcher.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/error_text.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/fabric/launch.h"

namespace bimetal::cli {
namespace {

int parse_and_run(std::vector<std::string> words) {
  CLI::App app("Starts the ranks of a job.", "bimetal");
  app.set_version_flag("--version", fmt::format("bimetal {}", release()));
  app.require_subcommand(1);
  Action action;
  add_launch(app, action);
  words.erase(words.begin());
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kSuccess : kUsage;
  }
  return action();
}

}  // namespace

int run_launcher(std::vector<std::string> words) {
  try {
    return parse_and_run(std::move(words));
  } catch (const std::exception& exception) {
    const auto error = as_error(exception);
    print_error(error);
    return exit_status(error.code());
  }
}

}  // namespace bimetal::cli
