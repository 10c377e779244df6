#include "bimetal/launch/local/find_program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <asio/ip/host_name.hpp>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "bimetal/base/error.h"

namespace bimetal::launch {
namespace {

bool is_program(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& name) {
  const char* variable = std::getenv("PATH");
  const std::string path = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} has no program {} (looked from {}); install it there, or give the "
                            "path that it has on every host",
                            asio::ip::host_name(), name, std::filesystem::current_path().string()));
  }
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto candidate = (folder.empty() ? std::string(".") : folder) + "/" + name;
    if (is_program(candidate)) return candidate;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has no program {} in its PATH ({}); install it there, give its full "
                          "path, or hand your own PATH on by --env PATH",
                          asio::ip::host_name(), name, path));
}

}  // namespace bimetal::launch
