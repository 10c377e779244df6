#pragma once
// A launcher that somebody else's process stands in front of (Windows, where no process can take
// the place of another).

namespace bimetal::launch {

/// From now on this process ends at once when the one with number `pid` does, however that happens,
/// and with it all that it has started. Error(System) if there is no such process.
void end_with_process(int pid);

}  // namespace bimetal::launch
