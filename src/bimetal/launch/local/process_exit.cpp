#include <fmt/format.h>

#include "bimetal/launch/local/process.h"

namespace bimetal::launch {

std::string how_it_ended(const ProcessExit& exit) {
  if (exit.signal != 0) {
    return fmt::format("was killed by signal {} ({})", exit.signal, signal_name(exit.signal));
  }
  // What Windows or a library there ends a process with is known by its digits in this form.
  if (exit.status < 0)
    return fmt::format("ended with exit status {:#010x}", static_cast<unsigned>(exit.status));
  return fmt::format("ended with exit status {}", exit.status);
}

bool is_fatal(int signal) {
  return signal == kKillSignal || signal == SIGSEGV || signal == kBusSignal || signal == SIGILL ||
         signal == SIGFPE;
}

}  // namespace bimetal::launch
