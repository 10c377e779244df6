#pragma once
// The times of each operation and phase, from the events of a profiled rank.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bimetal/train/profile/profile.h"

namespace bimetal::train {

/// Something that happened on one thread, or on an accelerator. Times are nanoseconds since 1970 by
/// this rank's clock.
struct ProfiledEvent {
  enum class Kind { operation, mark, memory, kernel };
  Kind kind = Kind::operation;
  std::string name = {};
  std::int64_t begin_ns = 0, end_ns = 0;
  std::uint64_t thread = 0;
  std::int64_t bytes = 0;  ///< memory: allocated, or freed (below 0)
};

inline constexpr double kNanosecond = 1e-9;  ///< in seconds

struct Interval {
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// Operations by name; events of one thread contain each other, and memory belongs to the innermost
/// operation around it. Marks count for nothing. In no order.
std::vector<Operation> add_up(std::vector<ProfiledEvent> events);

/// Adds operations of the same name.
void merge(std::vector<Operation>& into, const std::vector<Operation>& others);

/// The most expensive first: by self time on CPU and accelerator.
void sort_by_cost(std::vector<Operation>& operations);

/// Nanoseconds of each phase of train::Phase that has a mark, by its name without "bimetal::".
std::map<std::string, std::int64_t> phase_times(const std::vector<ProfiledEvent>& events);

/// How long at least one of the intervals lasted, in nanoseconds.
std::int64_t covered(std::vector<Interval> intervals);

}  // namespace bimetal::train
