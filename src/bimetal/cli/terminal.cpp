#include "bimetal/cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"

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

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::mutex output_mutex;
Listener listener;

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

std::vector<std::string> aligned(const std::vector<TableRow>& rows, std::size_t left_columns) {
  std::vector<std::size_t> widths;
  for (const TableRow& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::vector<std::string> lines;
  for (const TableRow& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width_of(row[c]), ' ');
      if (c > 0) line += "  ";
      line += c < left_columns ? row[c] + padding : padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  }
  return lines;
}

std::string memory_text(std::uint64_t bytes) {
  if (bytes == 0) return "–";
  const double mebibytes = static_cast<double>(bytes) / (1 << 20);
  if (mebibytes < 1024) return fmt::format("{:.0f} MiB", mebibytes);
  return fmt::format("{:.1f} GiB", mebibytes / 1024);
}

std::string figure_text(double value) {
  if (!(value > 0)) return "–";
  const int digits_before = static_cast<int>(std::floor(std::log10(value))) + 1;
  return fmt::format("{:.{}f}", value, std::clamp(3 - digits_before, 0, 6));
}

StatusLine::~StatusLine() {
  clear_line_of_others();
}

void StatusLine::show(const std::string& text) {
  if (!errors_are_live()) return;
  clear_line_of_others();
  constexpr int kColumns = 79;  // of the narrowest terminal in use: a longer line would wrap
  write_to(stderr, cut_to(text, kColumns));
}

int exit_status(ErrorCode code) noexcept {
  // Written out, since scripts rely on the numbers.
  switch (code) {
    case ErrorCode::InvalidArgument: return kUsage;
    case ErrorCode::Unsupported: return 3;
    case ErrorCode::Timeout: return 4;
    case ErrorCode::PeerLost: return 5;
    case ErrorCode::Aborted: return 6;
    case ErrorCode::Unauthorized: return 7;
    case ErrorCode::ProtocolMismatch: return 8;
    case ErrorCode::CallMismatch: return 9;
    case ErrorCode::CorruptData: return 10;
    case ErrorCode::OutOfMemory: return 11;
    case ErrorCode::NotFinite: return 12;
    case ErrorCode::System: return 13;
    case ErrorCode::Internal: return 14;
  }
  return 14;
}

Error as_error(const std::exception& exception) {
  const auto error = to_error(exception);
  if (error.code() != ErrorCode::Internal || dynamic_cast<const Error*>(&exception)) return error;
  const std::string text = error.what();
  return {ErrorCode::Internal, text.substr(0, text.find('\n'))};
}

void print_error(const Error& error) {
  print_to_errors(fmt::format("bimetal: error: {}", error.what()));
}

void show_warnings(const Listener& also) {
  {
    const std::scoped_lock lock(output_mutex);
    listener = also;
  }
  const char* rank = std::getenv("RANK");
  const std::string who = rank ? fmt::format("bimetal: rank {}", rank) : "bimetal";
  set_log_sink(
      [who, also](LogLevel level, std::string_view message) {
        if (also) also(to_string(level), message);
        print_to_errors(fmt::format("{}: {}: {}", who, to_string(level), message));
      },
      std::min(log_level_from_environment().value_or(LogLevel::warning), LogLevel::warning));
}

void note_output(std::string_view line) {
  const std::scoped_lock lock(output_mutex);
  if (listener) listener("output", line);
}

}  // namespace bimetal::cli
