#pragma once
// A pipe whose writing end the launcher holds and never writes to. When the launcher is gone,
// however it ended, the system closes that end, and every rank that watches the other one leaves.

namespace bimetal::launch {

/// The variable that tells a rank which descriptor to watch.
inline constexpr const char* kLifelineVariable = "BIMETAL_LIFELINE_FD";

/// If the launcher has given this process a lifeline, watches it on a thread of its own until the
/// process ends; when it is cut, ends the process at once with `exit_status`. Call once.
void watch_lifeline(int exit_status);

}  // namespace bimetal::launch
