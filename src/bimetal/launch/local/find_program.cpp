#include "bimetal/launch/local/find_program.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <filesystem>

#include "bimetal/base/error.h"
#include "bimetal/base/unicode/utf8_path.h"
#include "bimetal/launch/system/environment.h"
#include "bimetal/launch/system/executable.h"

namespace bimetal::launch {

std::string find_program(const std::string& name) {
  const auto names = executable_names(name);
  if (names_a_folder(name)) {
    for (const auto& candidate : names) {
      if (is_executable(candidate)) return candidate;
    }
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("{} has no program {} (looked from {}); install it there, or give the "
                    "path that it has on every host",
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

}  // namespace bimetal::launch
