#include "bimetal/launch/agent/rank_output.h"

#include <fmt/format.h>
#include <unistd.h>

namespace bimetal::launch {
namespace {

/// A line longer than this is shown in pieces.
constexpr std::size_t kLongestLine = 1 << 20;
constexpr std::chrono::seconds kRewrittenLineEvery{1};

constexpr std::size_t kMostUnprinted = 4 << 20;

constexpr std::string_view kTracebackBegins = "Traceback (most recent call last):";
constexpr std::chrono::seconds kMayFollow{5};  // a traceback may be about the loss of another rank
constexpr std::chrono::seconds kToHold{2};     // until it has come out that a rank has failed
constexpr std::chrono::seconds kEnding{1};     // between two lines of a rank that fails

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

std::string Tracebacks::take(int rank, std::string_view prefix, std::string_view lines) {
  std::string shown;
  while (!lines.empty()) {
    const auto line = lines.substr(0, lines.find('\n') + 1);
    lines.remove_prefix(line.size());
    const auto now = std::chrono::steady_clock::now();
    const auto [last, is_first] = last_line_.try_emplace(rank, now);
    note_line(rank, last->second);
    last->second = now;
    if (holds_back(rank, line.substr(prefix.size()).starts_with(kTracebackBegins))) {
      held_[rank].lines += line;
    } else {
      shown += line;
    }
  }
  return shown;
}

void Tracebacks::note_other_lines(int rank) {
  note_line(rank, std::nullopt);
}

/// `before`: when its last line on standard error came. Text printed before a traceback may come
/// later by the other pipe.
void Tracebacks::note_line(int rank, std::optional<Time> before) {
  if (cause_ || !first_ || first_->first != rank) return;
  const auto since = before.value_or(first_->second);
  if (std::chrono::steady_clock::now() - since > kEnding) first_.reset();
}

bool Tracebacks::holds_back(int rank, bool begins) {
  if (held_.contains(rank)) return true;
  if (!begins) return false;
  const auto now = std::chrono::steady_clock::now();
  const bool follows =
      first_ && first_->first != rank && (cause_ || now - first_->second <= kMayFollow);
  if (!follows) {
    if (!cause_) first_ = {rank, now};
    return false;
  }
  if (cause_ && *cause_ != first_->first) return false;
  held_[rank].since = now;
  return true;
}

std::string Tracebacks::release(bool all) {
  std::string lines;
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(held_, [&](const auto& held) {
    const bool released = !cause_ && (all || now - held.second.since >= kToHold);
    if (released) lines += held.second.lines;
    return released;
  });
  return lines;
}

std::string Tracebacks::name_cause(int rank) {
  cause_.reset();
  auto lines = !first_ || first_->first != rank ? release(true) : std::string();
  cause_ = rank;
  return lines;
}

std::optional<int> Tracebacks::first_to_complain() const {
  const auto now = std::chrono::steady_clock::now();
  if (!first_ || now - first_->second > kMayFollow) return std::nullopt;
  return first_->first;
}

std::vector<int> Tracebacks::left_out() const {
  std::vector<int> ranks;
  for (const auto& [rank, held] : held_) ranks.push_back(rank);
  return ranks;
}

LineCutter& RankOutput::cutter(int rank, OutputStream stream) {
  const auto found = cutters_.find({rank, stream});
  if (found != cutters_.end()) return found->second;
  auto prefix = prefixed_ ? fmt::format("[{}] ", rank) : std::string();
  return cutters_.emplace(std::pair(rank, stream), LineCutter(std::move(prefix))).first->second;
}

std::string RankOutput::take(int rank, OutputStream stream, std::string_view bytes) {
  return shown(rank, stream, cutter(rank, stream).take(bytes));
}

std::string RankOutput::rest_of(int rank, OutputStream stream) {
  return shown(rank, stream, cutter(rank, stream).rest());
}

std::string RankOutput::shown(int rank, OutputStream stream, std::string lines) {
  if (lines.empty()) return lines;
  if (stream == OutputStream::errors) {
    return tracebacks_.take(rank, prefixed_ ? fmt::format("[{}] ", rank) : "", lines);
  }
  tracebacks_.note_other_lines(rank);
  return lines;
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

std::vector<int> RankPrinter::end() {
  if (!muted_) errors_.push(lines_.tracebacks().release(/*all=*/true));
  return lines_.tracebacks().left_out();
}

bool RankPrinter::has_room() const noexcept {
  return out_.size() + errors_.size() < kMostUnprinted;
}

void RankPrinter::print() {
  if (!muted_) errors_.push(lines_.tracebacks().release(/*all=*/false));
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
