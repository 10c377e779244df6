#include "bimetal/cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>

#include "bimetal/base/console.h"
#include "bimetal/base/error.h"

namespace bimetal::cli {
namespace {

/// errno's number of the last output that was lost; 0: none was.
std::atomic<int> why_dropped{0};

constexpr const char* kClearLine = "\r\x1b[K";

const char* code_of(Colour colour) {
  switch (colour) {
    case Colour::bold: return "\x1b[1m";
    case Colour::green: return "\x1b[32m";
    case Colour::yellow: return "\x1b[33m";
    case Colour::red: return "\x1b[31m";
    case Colour::plain: break;
  }
  return "";
}

}  // namespace

Terminal::Terminal() : live_(may_rewrite(STDOUT_FILENO)) {}

Terminal::~Terminal() {
  clear();
}

void Terminal::print(std::string_view line) {
  clear();
  write_to(stdout, std::string(line) + "\n");
}

void Terminal::rewrite(const std::string& line) {
  if (!live_) return;
  write_to(stdout, kClearLine + cut_to(line, terminal_size().columns - 1));
  line_shown_ = true;
}

void Terminal::clear() {
  if (!line_shown_) return;
  write_to(stdout, kClearLine);
  line_shown_ = false;
}

std::string Terminal::coloured(Colour colour, std::string_view text) const {
  return live_ ? fmt::format("{}{}\x1b[0m", code_of(colour), text) : std::string(text);
}

bool errors_are_live() {
  return may_rewrite(STDERR_FILENO);
}

void clear_line_of_others() {
  if (!errors_are_live()) return;
  write_to(stderr, kClearLine);
}

void print_to_errors(std::string_view line) {
  clear_line_of_others();
  write_to(stderr, std::string(line) + "\n");
}

void write_to(std::FILE* stream, std::string_view text) noexcept {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  if (std::fflush(stream) == 0 && written) return;
  const bool nobody_reads = errno == EPIPE || errno == EIO;
  if (stream == stdout && !nobody_reads) why_dropped = errno;
}

void require_printed() {
  if (const int why = why_dropped) throw system_error("cannot write all of standard output", why);
}

std::string cut_to(const std::string& text, int columns) {
  const auto begins_character = [](char byte) { return (byte & 0xc0) != 0x80; };
  int seen = 0;
  std::size_t before_last = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!begins_character(text[i])) continue;
    if (++seen == columns) before_last = i;
    if (seen > columns) return text.substr(0, before_last) + "…";
  }
  return text;
}

}  // namespace bimetal::cli
