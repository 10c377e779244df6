#pragma once
// Paths as the project's text, which is UTF-8 on every system. std::filesystem assumes that a
// std::string is in the system's own encoding, and on Windows that cannot represent all names.

#include <filesystem>
#include <string>
#include <string_view>

namespace bimetal {

inline std::filesystem::path path_of_utf8(std::string_view text) {
  return std::filesystem::path(std::u8string(text.begin(), text.end()));
}

inline std::string utf8_of_path(const std::filesystem::path& path) {
  const auto text = path.u8string();
  return std::string(text.begin(), text.end());
}

}  // namespace bimetal
