#pragma once
// The time from the first to the last exchange of a step, beside other computation.

#include <ATen/record_function.h>

#include <concepts>
#include <memory>
#include <string>
#include <type_traits>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/work.h"

namespace bimetal::parallel {

/// From the sending of a step's first exchange to the end of its last one. Use from one thread at a
/// time; the exchanges may end on others.
class ExchangeSpan {
 public:
  ExchangeSpan();

  /// A step begins: nothing has been sent, nor waited for.
  void begin();
  /// `work` has just been sent.
  void watch(const comm::Work& work);

  /// So far in this step.
  double seconds() const noexcept;

  /// Seconds in which this rank has waited for others: whoever waits adds them (marked_wait).
  double waited = 0;

 private:
  struct Ends;
  Deadline::Clock::time_point first_sent_;
  std::shared_ptr<Ends> ends_;
};

// Waits of a step: timed for the report, and marked for a trace.

/// What the names of such marks begin with; a trace has them in a row of their own.
inline constexpr const char* kWaitingFor = "waiting for ";

/// Adds the seconds that `wait` takes to `seconds`, and returns what it does. In a trace it has the
/// name that `make_name` gives behind "waiting for "; that is called where somebody profiles, only.
/// An error passes through, and its wait does not count.
template <std::invocable MakeName, std::invocable Wait>
auto marked_wait(double& seconds, const MakeName& make_name, const Wait& wait) {
  at::RecordFunction mark(at::RecordScope::USER_SCOPE);
  if (mark.isActive()) mark.before(kWaitingFor + std::string(make_name()));
  const Stopwatch waiting;
  if constexpr (std::is_void_v<decltype(wait())>) {
    wait();
    seconds += waiting.seconds();
  } else {
    auto result = wait();
    seconds += waiting.seconds();
    return result;
  }
}

}  // namespace bimetal::parallel
