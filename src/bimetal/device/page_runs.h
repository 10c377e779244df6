#pragma once
// A set of pages, as the runs of neighbours that it consists of.

#include <cstddef>
#include <map>
#include <optional>

namespace bimetal::device {

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
  /// Takes out what is here of it, and says how many pages that were.
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

}  // namespace bimetal::device
