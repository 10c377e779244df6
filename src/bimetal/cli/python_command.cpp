#include "bimetal/cli/python_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/launch/local/pipe.h"
#include "bimetal/launch/local/process.h"

namespace bimetal::cli {
namespace {

/// How the whole program is called, beside the one that starts it.
constexpr const char* kWholeProgram = "bimetal-torch";

struct Own {
  Process process = Process::has_torch;
  std::vector<std::string> arguments;
};

Own& own() {
  static Own own;
  return own;
}

/// Returns only where it failed.
void become(const std::string& program, std::vector<std::string> words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::execvp(program.c_str(), pointers.data());
}

std::string no_python(const std::string& python) {
  return fmt::format("cannot run {} (BIMETAL_PYTHON names another Python; see docs/python.md)",
                     python);
}

/// `before`: what MODULE wants in front of the command's own arguments.
void add(CLI::App& app, Action& action, const char* name, const char* what,
         const std::string& module, const std::vector<std::string>& before = {}) {
  auto* command = app.add_subcommand(name, what);
  command->set_help_flag();  // Python's own help tells more
  command->prefix_command();
  command->callback([command, module, before, &action] {
    action = [command, module, words = before]() mutable {
      for (auto& word : command->remaining()) words.push_back(std::move(word));
      return become_python(module, words);
    };
  });
}

/// Turns Python's description of a command into options like the program's own.
void describe(CLI::App& command, const nlohmann::json& said) {
  for (const auto& option : said.at("options")) {
    const auto names = option.at("names").get<std::vector<std::string>>();
    const auto name = fmt::format("{}", fmt::join(names, ","));
    const auto what = option.at("what").get<std::string>();
    const auto value = option.at("value").get<std::string>();
    if (value.empty()) {
      command.add_flag(name, what);
    } else {
      command
          .add_option_function<std::string>(
              name, [](const std::string&) {}, what)
          ->type_name(value);
    }
  }
  for (const auto& [name, below] : said.at("commands").items()) {
    auto* one = command.add_subcommand(name, below.at("what").get<std::string>());
    one->set_help_flag();
    describe(*one, below);
  }
  command.footer(said.at("notes").get<std::string>());
}

std::string last_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

/// All that comes until the other side closes.
std::string read_to_end(const launch::FileDescriptor& from) {
  std::string text;
  pollfd wait{from.number(), POLLIN, 0};
  launch::set_nonblocking(from);
  while (launch::read_available(from, text)) ::poll(&wait, 1, /*milliseconds=*/-1);
  return text;
}

launch::ProcessExit end_of(launch::Process& process) {
  constexpr auto kLookAgain = std::chrono::milliseconds(5);
  while (true) {
    if (const auto exit = process.poll()) return *exit;
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace

int become_python(const std::string& module, const std::vector<std::string>& arguments) {
  const auto python = launch::python_program();
  launch::prefer_own_package();
  ::setenv("BIMETAL_PROGRAM", launch::own_program().c_str(), /*overwrite=*/0);  // to start this one
  std::vector<std::string> words = {python, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  become(python, std::move(words));
  throw system_error(no_python(python), errno);
}

std::string ask_python(const std::string& module, const std::string& question) {
  launch::prefer_own_package();
  auto input = launch::Pipe::create(), output = launch::Pipe::create();
  launch::ProcessCommand command;
  command.argv = {launch::find_program(launch::python_program()), "-m", module};
  command.descriptors = {
      {0, input.read.number()}, {1, output.write.number()}, {2, output.write.number()}};
  command.dies_with_starter = true;
  auto process = launch::Process::start(command);
  input.read.close();
  output.write.close();  // the stream then ends with the process
  launch::write_all(input.write, question);
  input.write.close();
  const auto answer = last_line(read_to_end(output.read));
  const auto exit = end_of(process);
  if (exit.status == 0 && exit.signal == 0) return answer;
  throw Error(ErrorCode::System, fmt::format("python -m {} has failed: {}", module, answer));
}

void describe_python_commands(CLI::App& app) {
  try {
    const auto said = nlohmann::json::parse(ask_python("bimetal._reference", ""));
    for (const auto& [name, command] : said.items()) describe(*app.get_subcommand(name), command);
  } catch (const std::exception& error) {
    print_to_errors(fmt::format("bimetal: note: the options of Python's commands are left out: {}",
                                error.what()));
  }
}

void remember_process(Process process, std::vector<std::string> arguments) {
  own() = {process, std::move(arguments)};
}

std::filesystem::path program_of_ranks() {
  const auto path = launch::own_program();
  return own().process == Process::starts_others ? path.parent_path() / kWholeProgram : path;
}

int become_whole_program() {
  std::vector<std::string> words = {"bimetal"};
  words.insert(words.end(), own().arguments.begin(), own().arguments.end());
  ::setenv("BIMETAL_PROGRAM", launch::own_program().c_str(), /*overwrite=*/0);  // not that one
  const auto whole = program_of_ranks();
  become(whole, std::move(words));
  throw system_error(fmt::format("cannot run {}, which belongs to this program", whole.string()),
                     errno);
}

void enter_python_for(const job::JobConfig& job) {
  if (job.model.python.empty() || own().process == Process::is_pythons) return;
  become_python("bimetal.program", own().arguments);
}

void add_python_commands(CLI::App& app, Action& action) {
  add(app, action, "data", "Make data sets: tokenize turns text into token files", "bimetal.data");
  add(app, action, "doctor", "Look for what may keep machines from working together",
      "bimetal.command", {"doctor"});
  add(app, action, "ray", "Start nodes of a Ray cluster: up, join (python -m bimetal.ray)",
      "bimetal.ray");
  add(app, action, "tune", "Search hyper-parameters: many short trainings, packed onto devices",
      "bimetal.tune");
  add(app, action, "ensemble", "Train independent models in parallel and average what they predict",
      "bimetal.ensemble");
}

}  // namespace bimetal::cli
