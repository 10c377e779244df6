#pragma once
// What to do about errors of the operating system whose words alone help nobody, as at a limit that
// somebody has set.

#include <string>

namespace bimetal {

/// Follows the system's words, with a space before. Mostly empty.
std::string advice_on(int os_error);

}  // namespace bimetal
