#include "bimetal/device/page_runs.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace bimetal::device {

void PageRuns::add(PageRun run) {
  if (run.pages == 0) return;
  const auto after = end_of_.lower_bound(run.first);
  const auto before = after == end_of_.begin() ? end_of_.end() : std::prev(after);
  const auto end = after != end_of_.end() && after->first == run.end() ? after->second : run.end();
  if (before != end_of_.end() && before->second == run.first) {
    before->second = end;
  } else {
    end_of_.emplace_hint(after, run.first, end);
  }
  if (end != run.end()) end_of_.erase(after);
  pages_ += run.pages;
}

std::size_t PageRuns::remove(PageRun run) {
  std::size_t removed = 0;
  auto at = end_of_.upper_bound(run.first);
  if (at != end_of_.begin() && std::prev(at)->second > run.first) --at;
  while (at != end_of_.end() && at->first < run.end()) {
    const auto [first, end] = *at;
    const auto from = std::max(first, run.first), to = std::min(end, run.end());
    removed += to - from;
    pages_ -= to - from;
    if (first < from) {
      if (end > to) end_of_.emplace_hint(std::next(at), to, end);
      at->second = from;
      ++at;
    } else if (end > to) {
      auto rest = end_of_.extract(at);
      rest.key() = to;
      end_of_.insert(std::move(rest));
      break;
    } else {
      at = end_of_.erase(at);
    }
  }
  return removed;
}

std::optional<PageRun> PageRuns::best_fit(std::size_t pages) const {
  std::optional<PageRun> best;
  for (const auto& [first, end] : end_of_) {
    const PageRun run{first, end - first};
    if (run.pages >= pages && (!best || run.pages < best->pages)) best = run;
  }
  return best;
}

std::optional<PageRun> PageRuns::last() const {
  if (end_of_.empty()) return std::nullopt;
  const auto [first, end] = *end_of_.rbegin();
  return PageRun{first, end - first};
}

}  // namespace bimetal::device
