#pragma once
// Writes IDX files, sound and damaged, into a folder that goes with the test.

#include <gtest/gtest.h>
#include <zlib.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace bimetal::data::test {

using Bytes = std::vector<std::uint8_t>;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> count = 0;
    const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
    path_ = std::filesystem::temp_directory_path() /
            ("bimetal-data-" + std::to_string(now) + "-" + std::to_string(++count));
    std::filesystem::create_directories(path_);
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

/// Header for `shape` followed by `elements`, whether they fit or not.
inline Bytes idx_bytes(const std::vector<std::uint32_t>& shape, const Bytes& elements) {
  Bytes bytes = {0, 0, 8, static_cast<std::uint8_t>(shape.size())};
  for (const std::uint32_t size : shape) {
    for (const int shift : {24, 16, 8, 0})
      bytes.push_back(static_cast<std::uint8_t>(size >> shift));
  }
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

/// 0, 1, 2, … modulo `modulus`.
inline Bytes counting(std::size_t count, int modulus = 251) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::uint8_t>(i % static_cast<std::size_t>(modulus));
  }
  return bytes;
}

inline void write_file(const std::filesystem::path& path, const Bytes& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(out.good());
}

inline void write_gzip(const std::filesystem::path& path, const Bytes& bytes) {
  gzFile file = gzopen(path.string().c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
            static_cast<int>(bytes.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

inline Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return Bytes(std::istreambuf_iterator<char>(in), {});
}

}  // namespace bimetal::data::test
