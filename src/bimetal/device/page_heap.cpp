#include "bimetal/device/page_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <new>
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

namespace {

/// More than was in use may be held: a sixteenth and so many bytes, so that steps whose tensors do
/// not come in the order of those before find pages, and small models all of them.
constexpr std::size_t kSpare = 16 << 20;
constexpr std::size_t kSparePart = 16;
/// Pages become usable by so many bytes at a time.
constexpr std::size_t kGrowth = 64 << 20;

#ifndef MAP_NORESERVE
constexpr int MAP_NORESERVE = 0;
#endif

}  // namespace

PageHeap::PageHeap(std::size_t room)
    : page_bytes_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
  void* base = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return;  // no address space: nothing will be had here
  base_ = static_cast<std::byte*>(base);
  room_ = room / page_bytes_;
  free_.add({0, room_});
}

PageHeap::~PageHeap() {
  if (base_) munmap(base_, room_ * page_bytes_);
}

void* PageHeap::take(std::size_t bytes) {
  const std::size_t pages = (bytes + page_bytes_ - 1) / page_bytes_;
  const std::lock_guard lock(mutex_);
  const auto fit = free_.best_fit(pages);
  if (!fit) return nullptr;
  const PageRun run{fit->first, pages};
  if (!make_usable(run.end())) return nullptr;
  taken_.emplace(run.first, pages);
  free_.remove(run);
  kept_.remove(run);
  in_use_ += pages;
  most_in_use_ = std::max(most_in_use_, in_use_);
  const auto spare = most_in_use_ / kSparePart + kSpare / page_bytes_;
  keep_at_most(most_in_use_ + std::min(spare, most_spare_) - in_use_);
  return address_of(run.first);
}

bool PageHeap::make_usable(std::size_t end) {
  if (end <= usable_) return true;
  const auto grown = std::min(room_, std::max(end, usable_ + kGrowth / page_bytes_));
  if (mprotect(address_of(usable_), (grown - usable_) * page_bytes_, PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  usable_ = grown;
  return true;
}

bool PageHeap::owns(const void* block) const {
  const auto* at = static_cast<const std::byte*>(block);
  const std::lock_guard lock(mutex_);
  if (at < base_ || at >= address_of(room_)) return false;
  return taken_.contains(static_cast<std::size_t>(at - base_) / page_bytes_);
}

void PageHeap::give_back(void* block) noexcept {
  const std::lock_guard lock(mutex_);
  const auto first = static_cast<std::size_t>(static_cast<std::byte*>(block) - base_) / page_bytes_;
  const auto taken = taken_.find(first);
  const PageRun run{first, taken->second};
  taken_.erase(taken);
  in_use_ -= run.pages;
  try {
    free_.add(run);
    kept_.add(run);
  } catch (const std::bad_alloc&) {
    release(run);  // no memory to remember it by
  }
}

void PageHeap::drop() noexcept {
  const std::lock_guard lock(mutex_);
  keep_at_most(0);
  most_in_use_ = in_use_;
}

/// The last ones go first: best fits and the start of the heap are where tensors come back to.
void PageHeap::keep_at_most(std::size_t pages) noexcept {
  while (kept_.pages() > pages) {
    const auto last = *kept_.last();
    const auto many = std::min(last.pages, kept_.pages() - pages);
    const PageRun run{last.end() - many, many};
    release(run);
    kept_.remove(run);
  }
}

void PageHeap::release(PageRun run) noexcept {
  void* first = address_of(run.first);
  const auto bytes = run.pages * page_bytes_;
#ifdef __linux__
  madvise(first, bytes, MADV_DONTNEED);
#else
  // Elsewhere that is only advice: mapping the pages anew over themselves frees their memory, too.
  mmap(first, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0);
#endif
}

void PageHeap::limit_spare(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  most_spare_ = bytes / page_bytes_;
}

PageHeap::Use PageHeap::use() const {
  const std::lock_guard lock(mutex_);
  return {in_use_ * page_bytes_, kept_.pages() * page_bytes_, most_in_use_ * page_bytes_};
}

}  // namespace bimetal::device
