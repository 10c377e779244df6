#pragma once
// Waits of a step: timed for the report, and marked for a trace.

#include <ATen/record_function.h>

#include <concepts>
#include <string>
#include <type_traits>

#include "bimetal/base/stopwatch.h"

namespace bimetal::parallel {

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
