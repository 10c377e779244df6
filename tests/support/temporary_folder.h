#pragma once
// A folder of its own for one test, removed with everything in it.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "bimetal/base/deadline.h"

namespace bimetal::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = ::testing::TempDir() + "/bimetal-XXXXXX";
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

/// The names in a folder, hidden ones included.
inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// Returns once `name` is there; throws after a minute.
inline void wait_for_name(const std::filesystem::path& folder, const std::string& name) {
  const auto deadline = Deadline::after(std::chrono::minutes(1));
  while (!std::filesystem::exists(folder / name)) {
    if (deadline.expired()) throw std::runtime_error("nobody made " + (folder / name).string());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline std::string contents_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline void put_contents(const std::filesystem::path& file, const std::string& contents) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << contents;
}

}  // namespace bimetal::test
