#include "bimetal/cli/demo/temporary_folder.h"

#include <stdlib.h>
#include <unistd.h>  // mkdtemp on macOS

#include <cerrno>
#include <string>
#include <system_error>

#include "bimetal/base/error.h"

namespace bimetal::cli {

TemporaryFolder::TemporaryFolder() {
  auto pattern = (std::filesystem::temp_directory_path() / "bimetal-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw system_error("cannot make a temporary folder " + pattern, errno);
  }
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace bimetal::cli
