#include "bimetal/launch/agent/rank_printer.h"

#include <unistd.h>

namespace bimetal::launch {
namespace {

constexpr std::size_t kMostUnprinted = 4 << 20;

}  // namespace

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
