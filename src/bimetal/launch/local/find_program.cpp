#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <filesystem>

#include "bimetal/base/error.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/system/environment.h"

namespace bimetal::launch {
namespace {

namespace fs = std::filesystem;

#ifdef _WIN32
constexpr const char *kPython = "python", *kOfEnvironment = "Scripts/python.exe";
constexpr char kBetweenFolders = ';';
#else
constexpr const char *kPython = "python3", *kOfEnvironment = "bin/python";
constexpr char kBetweenFolders = ':';
#endif

/// Empty where it cannot be told, which takes /proc.
fs::path own_folder() {
  try {
    return own_program().parent_path();
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::string find_program(const std::string& name) {
  const auto names = executable_names(name);
  if (names_a_folder(name)) {
    for (const auto& candidate : names) {
      if (is_executable(candidate)) return candidate;
    }
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("{} has no program {} (looked from {}); install it there, or give the path "
                    "that it has on every host",
                    asio::ip::host_name(), name, utf8_of_path(std::filesystem::current_path())));
  }
  for (const auto& folder : program_folders()) {
    for (const auto& file : names) {
      // As this system writes it: cmd.exe takes a slash in its own name for an option.
      const auto candidate = utf8_of_path(path_of_utf8(folder) / file);
      if (is_executable(candidate)) return candidate;
    }
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has no program {} in its PATH ({}); install it there, give its full "
                          "path, or hand your own PATH on by --env PATH",
                          asio::ip::host_name(), name,
                          environment_variable("PATH").value_or("which is not set")));
}

std::string python_program() {
  if (const auto named = environment_variable("BIMETAL_PYTHON"); named && !named->empty()) {
    return *named;
  }
  const auto own = utf8_of_path(own_folder().parent_path() / ".venv" / kOfEnvironment);
  return is_executable(own) ? own : kPython;
}

void prefer_own_package() {
  const auto package = own_folder() / "python";
  std::error_code none;  // folders that this user may not look into count as not there
  if (!fs::exists(package / "bimetal", none)) return;
  auto folders = utf8_of_path(package);
  if (const auto before = environment_variable("PYTHONPATH"); before && !before->empty()) {
    folders += kBetweenFolders + *before;
  }
  set_environment_variable("PYTHONPATH", folders);
}

std::vector<std::string> runnable(std::vector<std::string> command) {
  auto& program = command.at(0);
  std::error_code none;
  if (program.ends_with(".py") && fs::exists(path_of_utf8(program), none)) {
    prefer_own_package();
    command.insert(command.begin(), find_program(python_program()));
  } else {
    program = find_program(program);
  }
  return command;
}

}  // namespace bimetal::launch
