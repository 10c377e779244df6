#pragma once
// The contents of a profile of some steps: docs/profile.md.

#include <ATen/record_function.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "bimetal/progress/observer.h"

namespace bimetal::train {

/// One of libtorch's operations, or a kernel of an accelerator, over all steps and ranks.
struct Operation {
  std::string name;        ///< "aten::addmm"
  std::int64_t calls = 0;  ///< in the profiled steps
  double self_s = 0;       ///< on the CPU, without the operations that it calls
  double total_s = 0;      ///< with them
  double device_s = 0;     ///< on the accelerator
  std::int64_t bytes = 0;  ///< allocated less freed by itself; below 0: it frees others' memory
  bool operator==(const Operation&) const = default;
};

/// Seconds of a rank in one phase.
struct PhaseTime {
  std::string name;    ///< data, forward, backward, wait, update, other; and exchange, beside them
  double seconds = 0;  ///< of all profiled steps
};

/// The ranks' work in some steps.
struct Profile {
  std::int64_t first_step = 0, last_step = 0;        ///< that it is of
  int ranks = 0;                                     ///< profiled
  double seconds = 0;                                ///< of all steps, added up over the ranks
  std::vector<Operation> operations = {};            ///< the most expensive first
  std::vector<PhaseTime> phases = {};                ///< added up over the ranks
  std::vector<std::vector<double>> seconds_of = {};  ///< by rank and phase, as in `phases`
  std::vector<std::vector<progress::StepSpan>> spans = {};  ///< by rank: the last step
  std::vector<double> latency_s = {};  ///< by rank: that of a short message from rank 0, one
                                       ///< way
  std::filesystem::path trace = {};    ///< of all ranks, for chrome://tracing and ui.perfetto.dev
  double clock_error_s = 0;            ///< most that the ranks' clocks may be apart in it
};

/// The profile that is asked for. Rank 0's request counts.
struct ProfileRequest {
  std::int64_t first_step = 0, last_step = 0;     ///< both included, counted from the job's start
  std::filesystem::path trace = {};               ///< file for the trace; empty: none
  std::function<void(const Profile&)> done = {};  ///< called on rank 0
};

// The phases of a step, marked for a profile.

/// Until its end this thread is in the phase `name`, one of those here; phases do not nest. Or, for
/// a trace alone, a mark of any other name within one. Costs a few nanoseconds where nobody
/// profiles.
class Phase {
 public:
  static constexpr const char* kData = "bimetal::data";
  static constexpr const char* kForward = "bimetal::forward";
  static constexpr const char* kBackward = "bimetal::backward";
  static constexpr const char* kBubble = "bimetal::bubble";
  static constexpr const char* kWait = "bimetal::wait";
  static constexpr const char* kUpdate = "bimetal::update";

  explicit Phase(const char* name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(name);
  }
  /// `make_name` is called where somebody profiles.
  template <std::invocable MakeName>
  explicit Phase(const MakeName& make_name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(std::string(make_name()));
  }

 private:
  at::RecordFunction record_;
};

template <typename Work>
auto in_phase(const char* name, const Work& work) {
  const Phase phase(name);
  return work();
}

// The times of each operation and phase, from the events of a profiled rank.

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
