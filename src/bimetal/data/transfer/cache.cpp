#include "bimetal/data/transfer/cache.h"

#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <system_error>

#include "bimetal/base/atomic_file.h"
#include "bimetal/base/error.h"

namespace bimetal::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFolderDigits = 32;  // 128 bits are enough to tell contents apart

/// A variable's value, if it is set and not empty.
const char* set_variable(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

std::string read_id(const fs::path& file) {
  std::string id;
  std::ifstream(file) >> id;
  return id;
}

/// Processes that make one at the same time agree on the one that came first: a link, other than a
/// renaming, replaces nothing. Where the file system has no links, the last one counts.
std::string agree_on_id(const fs::path& file) {
  if (auto id = read_id(file); !id.empty()) return id;
  std::random_device random;
  const auto id = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
  const auto mine = file.parent_path() / fmt::format(".id-{}", id);
  write_file_atomically(mine, id + "\n");
  std::error_code not_first, ignored;
  fs::create_hard_link(mine, file, not_first);
  if (not_first && read_id(file).empty()) fs::rename(mine, file, ignored);
  fs::remove(mine, ignored);
  return read_id(file);
}

}  // namespace

fs::path cache_root() {
  if (const char* own = set_variable("BIMETAL_CACHE")) return fs::absolute(own);
  if (const char* caches = set_variable("XDG_CACHE_HOME")) return fs::absolute(caches) / "bimetal";
  if (const char* home = set_variable("HOME")) return fs::absolute(home) / ".cache" / "bimetal";
  throw Error(ErrorCode::InvalidArgument,
              "there is no place to keep data: neither BIMETAL_CACHE nor HOME is set; set "
              "BIMETAL_CACHE to a folder with room");
}

Cache::Cache() : root_(cache_root()) {
  std::error_code error;
  for (const char* name : {"data", "urls"}) {
    fs::create_directories(root_ / name, error);
    if (!error) continue;
    throw Error(ErrorCode::System,
                fmt::format("cannot create '{}', where data is kept: {}; set BIMETAL_CACHE to a "
                            "folder that can be written to",
                            (root_ / name).string(), error.message()));
  }
  id_ = agree_on_id(root_ / "id");
}

fs::path Cache::data_folder(const Digest& contents) const {
  return root_ / "data" / hex(contents, kFolderDigits);
}

fs::path Cache::url_folder(const Digest& url) const {
  return root_ / "urls" / hex(url, kFolderDigits);
}

fs::path Cache::lock_file(const std::string& name) const {
  return root_ / "locks" / name;
}

}  // namespace bimetal::data
