#pragma once
// The mark that Windows' programs (Notepad, PowerShell) write before the text of a file.

#include <string_view>

namespace bimetal {

/// `text` as it goes on after a mark of UTF-8, if it begins with one.
inline std::string_view without_byte_order_mark(std::string_view text) noexcept {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

/// Whether it begins with a mark of UTF-16, as PowerShell 5's `>` writes.
inline bool has_mark_of_utf16(std::string_view text) noexcept {
  return text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF");
}

}  // namespace bimetal
