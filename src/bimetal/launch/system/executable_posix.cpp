#include <unistd.h>

#include <filesystem>
#include <sstream>

#include "bimetal/launch/system/environment.h"
#include "bimetal/launch/system/executable.h"

namespace bimetal::launch {

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
  std::istringstream path(environment_variable("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  std::vector<std::string> folders;
  for (std::string folder; std::getline(path, folder, ':');) {
    folders.push_back(folder.empty() ? "." : folder);
  }
  return folders;
}

}  // namespace bimetal::launch
