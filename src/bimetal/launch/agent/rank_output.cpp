#include "bimetal/launch/agent/rank_output.h"

#include <fmt/format.h>
#include <unistd.h>

namespace bimetal::launch {
namespace {

/// A line longer than this is shown in pieces.
constexpr std::size_t kLongestLine = 1 << 20;
constexpr std::chrono::seconds kRewrittenLineEvery{1};

constexpr std::size_t kMostUnprinted = 4 << 20;

}  // namespace

std::string LineCutter::take(std::string_view bytes) {
  std::string lines;
  for (const char byte : bytes) {
    // "\r\n" is one line end; a "\r" before anything else means that the line is written anew.
    if (after_return_ && byte != '\n') end_line(lines, true);
    after_return_ = byte == '\r';
    if (byte == '\n') {
      end_line(lines, false);
    } else if (byte != '\r') {
      partial_ += byte;
      if (partial_.size() >= kLongestLine) end_line(lines, false);
    }
  }
  return lines;
}

std::string LineCutter::rest() {
  std::string lines;
  after_return_ = false;
  if (!partial_.empty()) end_line(lines, false);
  return lines;
}

void LineCutter::end_line(std::string& lines, bool rewritten) {
  const auto now = std::chrono::steady_clock::now();
  misses_module_ = misses_module_ || partial_.find("ModuleNotFoundError: ") != std::string::npos;
  const bool shown = !rewritten || (!partial_.empty() && now >= next_rewritten_);
  if (shown) lines += prefix_ + partial_ + "\n";
  if (shown && rewritten) next_rewritten_ = now + kRewrittenLineEvery;
  partial_.clear();
}

LineCutter& RankOutput::cutter(int rank, OutputStream stream) {
  const auto found = cutters_.find({rank, stream});
  if (found != cutters_.end()) return found->second;
  auto prefix = prefixed_ ? fmt::format("[{}] ", rank) : std::string();
  return cutters_.emplace(std::pair(rank, stream), LineCutter(std::move(prefix))).first->second;
}

std::string RankOutput::take(int rank, OutputStream stream, std::string_view bytes) {
  return cutter(rank, stream).take(bytes);
}

std::string RankOutput::rest_of(int rank, OutputStream stream) {
  return cutter(rank, stream).rest();
}

bool RankOutput::misses_module(int rank) const {
  const auto found = cutters_.find({rank, OutputStream::errors});
  return found != cutters_.end() && found->second.misses_module();
}

void RankPrinter::take(int rank, OutputStream stream, std::string_view bytes) {
  if (muted_) return;
  (stream == OutputStream::out ? out_ : errors_).push(lines_.take(rank, stream, bytes));
}

void RankPrinter::end(int rank) {
  if (muted_) return;
  out_.push(lines_.rest_of(rank, OutputStream::out));
  errors_.push(lines_.rest_of(rank, OutputStream::errors));
}

bool RankPrinter::has_room() const noexcept {
  return out_.size() + errors_.size() < kMostUnprinted;
}

void RankPrinter::print() {
  out_.write_some(STDOUT_FILENO);
  errors_.write_some(STDERR_FILENO);
}

void RankPrinter::add_to(WaitSet& news) const {
  if (!out_.empty()) news.add_writable(STDOUT_FILENO);
  if (!errors_.empty()) news.add_writable(STDERR_FILENO);
}

void RankPrinter::mute() {
  muted_ = true;
  out_ = errors_ = {};
}

}  // namespace bimetal::launch
