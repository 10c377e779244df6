#include "bimetal/cli/program.h"

#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/release.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

constexpr const char* kBeginWith = R"(Begin with:
  bimetal demo
  bimetal train examples/fashion_mnist.toml --worker cpu:threads=1 --worker cpu:threads=1,speed=0.25

`bimetal COMMAND --help` tells more. NO_COLOR=1 turns colours off.)";

std::vector<const CLI::App*> all_commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

/// Those that people are told of.
std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : all_commands_of(app)) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> long_options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

/// Nullptr if there is none of that name.
const CLI::App* command_named(const CLI::App& app, const std::string& name) {
  const auto all = all_commands_of(app);
  const auto found = std::ranges::find(all, name, [](const auto* one) { return one->get_name(); });
  return found == all.end() ? nullptr : *found;
}

/// "did you mean --worker?", or where the `known` ones are listed.
std::string meant(const std::string& word, const std::vector<std::string>& known,
                  std::string_view shown, const std::string& command) {
  const std::vector<std::string_view> names(known.begin(), known.end());
  if (const auto name = similar_name(word, names)) {
    return fmt::format("did you mean {}?", fmt::format(fmt::runtime(shown), *name));
  }
  return fmt::format("`{} --help` lists them", command);
}

/// What is wrong with `words`, which `app` could not parse.
std::string what_is_wrong(const CLI::App& app, const std::vector<std::string>& words,
                          const CLI::ParseError& error) {
  std::string command = "bimetal";
  if (!words.empty() && !words.front().starts_with('-')) {
    const auto* found = command_named(app, words.front());
    if (found == nullptr) {
      return fmt::format("no command is called '{}': {}", words.front(),
                         meant(words.front(), commands_of(app), "`bimetal {}`", command));
    }
    command += " " + words.front();
    const auto known = long_options_of(*found);
    for (const auto& word : words) {
      if (word == "--") break;  // the rest is another program's
      const auto option = word.substr(0, word.find('='));
      if (!option.starts_with("--") || std::ranges::find(known, option) != known.end()) continue;
      if (!all_commands_of(*found).empty()) break;  // it may be of one of these
      return fmt::format("`{}` has no option {}: {}", command, option,
                         meant(option, known, "{}", command));
    }
  }
  return fmt::format("`{}`: {} (`{} --help` says more)", command, error.what(), command);
}

bool has_command(const CLI::App& app, const std::vector<std::string>& words) {
  return !words.empty() && command_named(app, words.front()) != nullptr;
}

int run(std::vector<std::string> words, Process process) {
  CLI::App app("Trains one PyTorch model on unlike machines, each at its own speed.", "bimetal");
  app.set_version_flag("--version", fmt::format("bimetal {}", release()));
  app.require_subcommand(1);
  app.footer(kBeginWith);
  Action action;
  add_commands(app, action);
  if (process == Process::starts_others && !has_command(app, words)) return become_whole_program();
  words = with_command_apart(app, std::move(words));
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // as CLI11 takes them
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    print_error({ErrorCode::InvalidArgument, what_is_wrong(app, words, error)});
    return kUsage;
  }
  return action();
}

}  // namespace

int run_program(int argc, char** argv, Process process) {
  // A closed pipe, or a file that may not grow, is an error of that write and not the program's
  // end.
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    remember_process(process, words);
    show_warnings();
    const int status = run(words, process);
    if (status == kSuccess) require_printed();
    return status;
  } catch (const std::exception& exception) {
    const auto error = as_error(exception);
    print_error(error);
    return exit_status(error.code());
  }
}

}  // namespace bimetal::cli
