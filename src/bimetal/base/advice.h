#pragma once
// What to do about errors of the operating system whose words alone help nobody, as at a limit that
// somebody has set.

#include <cerrno>

namespace bimetal {

/// Follows the system's words, with a space before. Mostly empty.
inline const char* advice_on(int os_error) noexcept {
  switch (os_error) {
    case EMFILE: return " (a process may have no more of them here: see `ulimit -n`)";
    case ENFILE: return " (this machine may have no more of them)";
    case EAGAIN: return " (this user may have no more processes and threads: see `ulimit -u`)";
    default: return "";
  }
}

}  // namespace bimetal
