#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "bimetal/launch/system/environment.h"
#include "bimetal/launch/system/executable.h"

namespace bimetal::launch {
namespace {

constexpr const char* kUsualFolders = "/usr/local/bin:/usr/bin:/bin";

}  // namespace

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
