#pragma once
// Memory of large tensors on the CPU, used again by the tensors of the next step.

#include <cstddef>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

namespace bimetal::device {

// A set of pages, as the runs of neighbours that it consists of.

struct PageRun {
  std::size_t first = 0, pages = 0;

  std::size_t end() const { return first + pages; }
  bool operator==(const PageRun&) const = default;
};

/// Not thread-safe. Adding may throw std::bad_alloc, and then adds nothing; removing may where it
/// leaves two of a run.
class PageRuns {
 public:
  /// None of it may be here yet.
  void add(PageRun run);
  /// Takes out the pages of the run that are here, and returns their number.
  std::size_t remove(PageRun run);

  /// The shortest of those that hold as many, the first of them.
  std::optional<PageRun> best_fit(std::size_t pages) const;
  /// The one with the highest numbers.
  std::optional<PageRun> last() const;

  std::size_t pages() const { return pages_; }

 private:
  std::map<std::size_t, std::size_t> end_of_;  ///< by first page
  std::size_t pages_ = 0;
};

/// A heap of whole pages that keeps freed pages for the next user, but holds hardly more than was
/// in use at some time. Beyond that, free pages become the system's again, the last ones first,
/// while their addresses remain. A step so finds most pages of the one before, and the process is
/// hardly larger than its own peak. Thread-safe.
///
/// malloc does one of two things with large blocks: it unmaps them when freed, so that every step
/// pays for all of its pages anew, or it keeps them, and the holes between them add to the peak
/// (docs/planning.md has the figures).
class PageHeap {
 public:
  /// Addresses for so many bytes; they cost nothing until used.
  explicit PageHeap(std::size_t room);
  /// No block may be in use.
  ~PageHeap();
  PageHeap(const PageHeap&) = delete;
  PageHeap& operator=(const PageHeap&) = delete;

  /// At least `bytes` at the start of a page; their contents are left over from earlier use.
  /// nullptr: no addresses are left, or the system has no memory.
  void* take(std::size_t bytes);

  /// Whether it is one of these, and in use.
  bool owns(const void* block) const;

  /// Takes back what take() has given.
  void give_back(void* block) noexcept;

  /// Gives all free pages to the system, and forgets how much was in use before.
  void drop() noexcept;

  /// Beyond the most that was in use at some time, a sixteenth of that and 16 MiB may be kept. From
  /// now on at most `bytes` of this spare memory.
  void limit_spare(std::size_t bytes);

  struct Use {
    std::size_t in_use = 0, kept = 0, most_in_use = 0;  ///< bytes
  };
  Use use() const;

  /// Between them nothing here is half done: for fork(), whose child has no other threads.
  void lock() const { mutex_.lock(); }
  void unlock() const { mutex_.unlock(); }

 private:
  std::byte* address_of(std::size_t page) const { return base_ + page * page_bytes_; }
  bool make_usable(std::size_t end);
  void keep_at_most(std::size_t pages) noexcept;
  void release(PageRun run) noexcept;

  mutable std::mutex mutex_;
  std::size_t page_bytes_, room_ = 0;  ///< room_: pages
  std::byte* base_ = nullptr;
  std::size_t usable_ = 0;  ///< pages from the start that may be written
  PageRuns free_;           ///< not in use
  PageRuns kept_;           ///< of these, those that are in memory
  std::unordered_map<std::size_t, std::size_t> taken_;  ///< pages in use, by first one
  std::size_t in_use_ = 0, most_in_use_ = 0;            ///< pages
  std::size_t most_spare_ = std::numeric_limits<std::size_t>::max();  ///< pages
};

}  // namespace bimetal::device
