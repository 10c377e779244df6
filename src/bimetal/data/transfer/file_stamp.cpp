#include "bimetal/data/transfer/file_stamp.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "bimetal/base/error.h"

namespace bimetal::data {

FileStamp file_stamp(const std::filesystem::path& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) {
    throw system_error(fmt::format("cannot read '{}'", file.string()), errno);
  }
#ifdef __APPLE__
  const auto& modified = found.st_mtimespec;
#else
  const auto& modified = found.st_mtim;
#endif
  return {.size = static_cast<std::uint64_t>(found.st_size),
          .modified_ns = std::int64_t{modified.tv_sec} * 1'000'000'000 + modified.tv_nsec,
          .device = static_cast<std::uint64_t>(found.st_dev),
          .number = static_cast<std::uint64_t>(found.st_ino)};
}

}  // namespace bimetal::data
