#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "bimetal/launch/system/environment.h"

#ifdef __APPLE__
#include <crt_externs.h>
#endif

namespace bimetal::launch {
namespace {

constexpr const char* kUsualFolders = "/usr/local/bin:/usr/bin:/bin";

/// Shared libraries of macOS have no `environ`.
char** all_variables() {
#ifdef __APPLE__
  return *_NSGetEnviron();
#else
  return environ;
#endif
}

}  // namespace

NamedValues own_environment() {
  NamedValues variables;
  for (char** entry = all_variables(); *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

void set_environment_variable(const std::string& name, const std::string& value) {
  ::setenv(name.c_str(), value.c_str(), 1);
}

std::optional<std::string> home_folder() {
  return environment_variable("HOME");
}

bool is_executable(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

std::vector<std::string> executable_names(const std::string& name) {
  return {name};
}

bool names_a_folder(const std::string& name) {
  return name.find('/') != std::string::npos;
}

std::vector<std::string> program_folders() {
  std::istringstream path(environment_variable("PATH").value_or(kUsualFolders));
  std::vector<std::string> folders;
  for (std::string folder; std::getline(path, folder, ':');) {
    folders.push_back(folder.empty() ? "." : folder);
  }
  return folders;
}

void add_program_folder(const std::string& folder) {
  const auto folders = program_folders();
  if (std::ranges::find(folders, folder) != folders.end()) return;
  const auto path = environment_variable("PATH").value_or(kUsualFolders);
  set_environment_variable("PATH", path + ":" + folder);
}

}  // namespace bimetal::launch
