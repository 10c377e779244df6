#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/lite/entry.h"
#include "bimetal/cli/terminal.h"
#ifndef _WIN32
#include "bimetal/cli/start/way_in.h"
#endif
#include "bimetal/launch/meet.h"

namespace bimetal::cli {
namespace {

/// Torchrun's store is torch's: under torchrun it says so.
comm::Group meet_without_torch(const launch::RankEnvironment& env,
                               const launch::JoinOptions& options) {
  return launch::meet(env, options);
}

int parse_and_run(std::vector<std::string> words) {
  CLI::App app("What needs no torch: ranks, the links between them, and watching a job.",
               "bimetal");
  app.set_version_flag("--version", fmt::format("bimetal {}", release()));
  app.require_subcommand(1);
  Action action;
  add_launch(app, action);
  add_bench(app, action, meet_without_torch);
  add_top(app, action);
#ifndef _WIN32
  add_join_launch(app, action);
  add_machines(app, action);
  add_pair(app, action);
#endif
  words.erase(words.begin());
  words = with_command_apart(app, std::move(words));
  std::ranges::reverse(words);  // as CLI11 takes them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kSuccess : kUsage;
  }
  return action();
}

}  // namespace

int run_lite(std::vector<std::string> words) {
  try {
    show_warnings();
    return parse_and_run(std::move(words));
  } catch (const std::exception& exception) {
    const auto error = as_error(exception);
    print_error(error);
    return exit_status(error.code());
  }
}

}  // namespace bimetal::cli
