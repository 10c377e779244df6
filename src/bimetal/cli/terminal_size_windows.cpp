#include <windows.h>

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

TerminalSize terminal_size() {
  CONSOLE_SCREEN_BUFFER_INFO info;
  if (!GetConsoleScreenBufferInfo(GetStdHandle(STD_OUTPUT_HANDLE), &info)) return {};
  return {info.srWindow.Right - info.srWindow.Left + 1,
          info.srWindow.Bottom - info.srWindow.Top + 1};
}

}  // namespace bimetal::cli
