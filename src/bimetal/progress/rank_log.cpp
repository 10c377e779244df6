#include "bimetal/progress/rank_log.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/comm/exchange.h"

namespace bimetal::progress {
namespace {

double now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

/// Never in the midst of a character of UTF-8.
std::string cut(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return std::string(text.substr(0, most)) + "…";
}

std::size_t size_of(const RankLine& line) {
  return line.kind.size() + line.text.size() + sizeof line.at;
}

}  // namespace

void RankLog::say(std::string_view kind, std::string_view text) {
  RankLine line{now(), std::string(kind), cut(text, kMostOfLine)};
  const std::scoped_lock lock(mutex_);
  bytes_ += size_of(line);
  lines_.push_back(std::move(line));
  while (bytes_ > kMostWaiting) {
    bytes_ -= size_of(lines_.front());
    lines_.pop_front();
    ++dropped_;
  }
}

bool RankLog::due() const {
  const std::scoped_lock lock(mutex_);
  return !lines_.empty() && next_.expired();
}

std::vector<RankLine> RankLog::take() {
  const std::scoped_lock lock(mutex_);
  next_ = Deadline::after(kBetween);
  std::vector<RankLine> taken;
  if (dropped_ > 0) {
    taken.push_back(
        {now(), "warning", fmt::format("{} lines before these are left out", dropped_)});
    dropped_ = 0;
  }
  std::size_t bytes = 0;
  while (!lines_.empty() && (bytes += size_of(lines_.front())) <= kMostAtOnce) {
    bytes_ -= size_of(lines_.front());
    taken.push_back(std::move(lines_.front()));
    lines_.pop_front();
  }
  return taken;
}

std::vector<std::vector<RankLine>> gather_lines(comm::Group group, RankLog& mine,
                                                std::chrono::milliseconds timeout) {
  return comm::all_gather_fields(std::move(group), mine.take(), Deadline::after(timeout),
                                 [](auto& wire, std::vector<RankLine>& lines) { wire(lines); });
}

}  // namespace bimetal::progress
