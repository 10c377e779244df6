#include "bimetal/cli/program.h"

#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>

#include "bimetal/base/release.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/did_you_mean.h"
#include "bimetal/cli/error_text.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/warnings.h"
#include "bimetal/launch/join_world.h"

namespace bimetal::cli {
namespace {

constexpr const char* kBeginWith = R"(Begin with:
  bimetal demo
  bimetal train examples/fashion_mnist.toml --worker cpu:threads=1 --worker cpu:threads=1,speed=0.25

`bimetal COMMAND --help` tells more. NO_COLOR=1 turns colours off.)";

int run(int argc, char** argv) {
  CLI::App app("Trains one PyTorch model on unlike machines, each at its own speed.", "bimetal");
  app.set_version_flag("--version", fmt::format("bimetal {}", release()));
  app.require_subcommand(1);
  app.footer(kBeginWith);
  Action action;
  add_train(app, action);
  add_join(app, action);
  add_launch(app, action);
  add_evaluate(app, action);
  add_serve(app, action);
  add_predict(app, action);
  add_generate(app, action);
  add_export(app, action);
  add_checkpoint(app, action);
  add_show_job(app, action);
  add_plan(app, action);
  add_devices(app, action);
  add_bench(app, action, launch::join_world);
  add_demo(app, action);
  add_top(app, action);
  add_token(app, action);
  add_python_commands(app, action);
  add_rank(app, action);
  const auto words = with_command_apart(app, {argv + 1, argv + argc});
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // as CLI11 takes them
  } catch (const CLI::ParseError& error) {
    const auto status = app.exit(error);
    if (status == 0) return kSuccess;
    if (const auto hint = meant_instead(app, words)) print_to_errors(*hint);
    return kUsage;
  }
  return action();
}

}  // namespace

int run_program(int argc, char** argv) {
  // A closed pipe, or a file that may not grow, is an error of that write and not the program's
  // end.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  try {
    remember_arguments({argv + 1, argv + argc});
    show_warnings();
    const int status = run(argc, argv);
    if (status == kSuccess) require_printed();
    return status;
  } catch (const std::exception& exception) {
    const auto error = as_error(exception);
    print_error(error);
    return exit_status(error.code());
  }
}

}  // namespace bimetal::cli
