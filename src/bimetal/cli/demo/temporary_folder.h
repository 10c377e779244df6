#pragma once
// A folder for as long as it is needed.

#include <filesystem>

namespace bimetal::cli {

/// Made in the system's place for temporary files, readable by this user alone; removed with all
/// that is in it when destroyed. Error(System) if it cannot be made.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace bimetal::cli
