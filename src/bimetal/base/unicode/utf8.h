#pragma once
// Paths as the project's text, which is UTF-8 on every system. std::filesystem assumes that a
// std::string is in the system's own encoding, and on Windows that cannot represent all names.
//
// Text between the project (UTF-8) and Windows (UTF-16), and the messages of Windows' own errors.

#include <filesystem>
#include <string>
#include <string_view>

#include "bimetal/base/error.h"

namespace bimetal {

inline std::filesystem::path path_of_utf8(std::string_view text) {
  return std::filesystem::path(std::u8string(text.begin(), text.end()));
}

inline std::string utf8_of_path(const std::filesystem::path& path) {
  const auto text = path.u8string();
  return std::string(text.begin(), text.end());
}

// The mark that Windows' programs (Notepad, PowerShell) write before the text of a file.

/// `text` as it goes on after a mark of UTF-8, if it begins with one.
inline std::string_view without_byte_order_mark(std::string_view text) noexcept {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

/// Whether it begins with a mark of UTF-16, as PowerShell 5's `>` writes.
inline bool has_mark_of_utf16(std::string_view text) noexcept {
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
}

/// Bytes that are not UTF-8 become U+FFFD.
std::wstring wide_of_utf8(std::string_view text);

/// Half a surrogate pair becomes U+FFFD.
std::string utf8_of_wide(std::wstring_view text);

/// A System error from GetLastError(): "<what>: <Windows' words>".
Error windows_error(const std::string& what, unsigned long code);

}  // namespace bimetal
