#pragma once
// Text between the project (UTF-8) and Windows (UTF-16), and the messages of Windows' own errors.

#include <string>
#include <string_view>

#include "bimetal/base/error.h"

namespace bimetal {

/// What is no UTF-8 becomes U+FFFD.
std::wstring wide_of_utf8(std::string_view text);

/// Half a surrogate pair becomes U+FFFD.
std::string utf8_of_wide(std::wstring_view text);

/// A System error from GetLastError(): "<what>: <Windows' words>".
Error windows_error(const std::string& what, unsigned long code);

}  // namespace bimetal
