#include "bimetal/checkpoint/new_folder.h"

#include <fmt/format.h>

#include <system_error>

#include "bimetal/base/error.h"

namespace bimetal::checkpoint {

namespace fs = std::filesystem;

fs::path place_of_new_folder(const fs::path& folder) {
  auto target = fs::absolute(folder).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();  // "folder/"
  std::error_code none;
  if (fs::exists(target, none) && !(fs::is_directory(target) && fs::is_empty(target))) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} is there already: name a new or empty folder", target.string()));
  }
  fs::create_directories(target.parent_path());
  return target;
}

}  // namespace bimetal::checkpoint
