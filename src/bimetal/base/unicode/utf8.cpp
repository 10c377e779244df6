#include "bimetal/base/unicode/utf8.h"

#include <fmt/format.h>
#include <windows.h>

#include <array>

namespace bimetal {

std::wstring wide_of_utf8(std::string_view text) {
  const int size = static_cast<int>(text.size());
  std::wstring wide;
  wide.resize(
      static_cast<std::size_t>(MultiByteToWideChar(CP_UTF8, 0, text.data(), size, nullptr, 0)));
  MultiByteToWideChar(CP_UTF8, 0, text.data(), size, wide.data(), static_cast<int>(wide.size()));
  return wide;
}

std::string utf8_of_wide(std::wstring_view text) {
  const int size = static_cast<int>(text.size());
  std::string bytes;
  bytes.resize(static_cast<std::size_t>(
      WideCharToMultiByte(CP_UTF8, 0, text.data(), size, nullptr, 0, nullptr, nullptr)));
  WideCharToMultiByte(CP_UTF8, 0, text.data(), size, bytes.data(), static_cast<int>(bytes.size()),
                      nullptr, nullptr);
  return bytes;
}

Error windows_error(const std::string& what, unsigned long code) {
  std::array<wchar_t, 512> words{};
  const auto length =
      FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, code, 0,
                     words.data(), static_cast<DWORD>(words.size()), nullptr);
  auto text = utf8_of_wide({words.data(), length});
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == '.')) {
    text.pop_back();
  }
  if (text.empty()) text = fmt::format("error {}", code);
  return {ErrorCode::System, fmt::format("{}: {}", what, text)};
}

}  // namespace bimetal
