#include <sys/ioctl.h>
#include <unistd.h>

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

TerminalSize terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return {};
  TerminalSize known;
  if (size.ws_col > 0) known.columns = size.ws_col;
  if (size.ws_row > 0) known.rows = size.ws_row;
  return known;
}

}  // namespace bimetal::cli
