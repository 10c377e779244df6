#include <algorithm>
#include <cctype>
#include <sstream>

#include "bimetal/base/unicode/utf8_path.h"
#include "bimetal/launch/system/environment.h"
#include "bimetal/launch/system/executable.h"

namespace bimetal::launch {
namespace {

bool has_ending_of_program(const std::string& name) {
  auto ending = name.size() < 4 ? std::string() : name.substr(name.size() - 4);
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".exe" || ending == ".com";
}

}  // namespace

bool is_executable(const std::string& path) {
  // Not is_regular_file(): what Windows' store puts into PATH are links of a kind of its own.
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path_of_utf8(path), ignored);
  return has_ending_of_program(path) && std::filesystem::exists(status) &&
         !std::filesystem::is_directory(status);
}

std::vector<std::string> executable_names(const std::string& name) {
  if (has_ending_of_program(name)) return {name};
  return {name + ".exe", name + ".com"};
}

bool names_a_folder(const std::string& name) {
  return name.find_first_of("/\\:") != std::string::npos;
}

std::vector<std::string> program_folders() {
  std::istringstream path(environment_variable("PATH").value_or(""));
  std::vector<std::string> folders;
  for (std::string folder; std::getline(path, folder, ';');) {
    std::erase(folder, '"');
    if (!folder.empty()) folders.push_back(folder);
  }
  return folders;
}

void add_program_folder(const std::string& folder) {
  const auto folders = program_folders();
  if (std::ranges::find(folders, folder) != folders.end()) return;
  const auto path = environment_variable("PATH").value_or("");
  set_environment_variable("PATH", path + ";" + folder);
}

}  // namespace bimetal::launch
