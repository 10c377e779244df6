#include "bimetal/base/advice.h"

#include <cerrno>

namespace bimetal {

std::string advice_on(int os_error) {
  switch (os_error) {
    case EMFILE: return " (a process may have no more of them here: see `ulimit -n`)";
    case ENFILE: return " (this machine may have no more of them)";
    case EAGAIN: return " (this user may have no more processes and threads: see `ulimit -u`)";
    default: return "";
  }
}

}  // namespace bimetal
