#include "bimetal/net/shm/section_name_windows.h"

#include <algorithm>
#include <array>

#include "bimetal/net/noise.h"

namespace bimetal::net {
namespace {

constexpr std::size_t kRandomBytes = 16, kDigits = 2 * kRandomBytes;

}  // namespace

std::string new_section_name() {
  ensure_sodium();
  std::array<unsigned char, kRandomBytes> bytes;
  randombytes_buf(bytes.data(), bytes.size());
  std::array<char, kDigits + 1> text;
  sodium_bin2hex(text.data(), text.size(), bytes.data(), bytes.size());
  return text.data();
}

std::optional<std::wstring> object_name(std::string_view name, std::wstring_view suffix) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (name.size() != kDigits || !std::ranges::all_of(name, is_digit)) return std::nullopt;
  std::wstring whole = L"Local\\bimetal-";
  whole.append(name.begin(), name.end());
  return whole.append(suffix);
}

}  // namespace bimetal::net
