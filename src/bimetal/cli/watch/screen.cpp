#include "bimetal/cli/watch/screen.h"

#include <cstdio>

#include "bimetal/cli/terminal.h"

namespace bimetal::cli {
namespace {

// The alternate screen of xterm, which all terminals in use know; and the cursor.
constexpr const char* kEnter = "\x1b[?1049h\x1b[?25l";
constexpr const char* kLeave = "\x1b[?25h\x1b[?1049l";
constexpr const char* kHome = "\x1b[H";
constexpr const char* kClearToEndOfLine = "\x1b[K";
constexpr const char* kClearBelow = "\x1b[J";

}  // namespace

Screen::Screen() {
  write_to(stdout, kEnter);
}

Screen::~Screen() {
  write_to(stdout, kLeave);
}

void Screen::draw(const std::vector<std::string>& lines) {
  const auto size = terminal_size();
  std::string text = kHome;
  int row = 0;
  for (const auto& line : lines) {
    if (++row >= size.rows) break;  // the last row stays empty: nothing may scroll
    text += cut_to(line, size.columns) + kClearToEndOfLine + "\r\n";
  }
  write_to(stdout, text + kClearBelow);
}

}  // namespace bimetal::cli
