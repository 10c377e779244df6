#pragma once
// Advice on errors of the operating system whose own message does not help, such as a limit that
// somebody has set.

#include <cerrno>
#include <system_error>

namespace bimetal {

/// On an errno. Follows the system's words, with a space before. Mostly empty.
inline const char* advice_on(int number) noexcept {
  switch (number) {
    case EMFILE: return " (a process may have no more of them here: see `ulimit -n`)";
    case ENFILE: return " (this machine may have no more of them)";
    case EAGAIN: return " (this user may have no more processes and threads: see `ulimit -u`)";
    default: return "";
  }
}

/// The same for any code: that of another category may have the number of an errno, and is none.
inline const char* advice_on(const std::error_code& code) noexcept {
  const auto condition = code.default_error_condition();
  return condition.category() == std::generic_category() ? advice_on(condition.value()) : "";
}

}  // namespace bimetal
