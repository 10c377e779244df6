#include "bimetal/cli/python_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/python_program.h"

namespace bimetal::cli {
namespace {

namespace fs = std::filesystem;

/// The package of the build folder comes before one that is installed.
void prefer_package_of(const fs::path& build) {
  const auto package = build / "python";
  if (!fs::exists(package / "bimetal")) return;
  const char* before = std::getenv("PYTHONPATH");
  const bool more = before && *before;
  ::setenv("PYTHONPATH",
           more ? fmt::format("{}:{}", package.string(), before).c_str() : package.c_str(),
           /*overwrite=*/1);
}

/// Becomes `python -m MODULE ARGUMENTS`; returns by an error alone.
int become(const std::string& module, const std::vector<std::string>& arguments) {
  const auto build = launch::own_program().parent_path();
  const auto python = launch::python_program();
  prefer_package_of(build);
  ::setenv("BIMETAL_PROGRAM", launch::own_program().c_str(), /*overwrite=*/0);  // to start this one
  std::vector<std::string> words = {python, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(python.c_str(), pointers.data());
  throw system_error(
      fmt::format("cannot run {} (BIMETAL_PYTHON names another Python; see docs/python.md)",
                  python),
      errno);
}

void add(CLI::App& app, Action& action, const char* name, const char* what) {
  auto* command = app.add_subcommand(name, what);
  command->set_help_flag();  // Python's own help tells more
  command->prefix_command();
  command->callback([command, name, &action] {
    action = [command, name] {
      return become(fmt::format("bimetal.{}", name), command->remaining());
    };
  });
}

}  // namespace

void add_python_commands(CLI::App& app, Action& action) {
  add(app, action, "ray", "Start nodes of a Ray cluster: up, join (python -m bimetal.ray)");
  add(app, action, "tune", "Search hyper-parameters: many short trainings, packed onto devices");
  add(app, action, "ensemble",
      "Train independent models in parallel and average what they predict");
}

}  // namespace bimetal::cli
