#pragma once
// The time since the other side of a connection was last heard. It is counted in ticks of this
// process, because a process that was stopped itself has heard nothing either.

#include <chrono>
#include <optional>
#include <string_view>

#include "bimetal/net/silence.h"

namespace bimetal::parallel::server {

/// After how long somebody who says nothing counts as lost, and the key of the job that says so.
struct Patience {
  std::chrono::milliseconds time;
  std::string_view set_by;
};

/// `peer_timeout`: fabric.peer_timeout_s; nothing: as for every other connection between hosts. On
/// one host no network is at fault, and who is stopped there gets what a step's communication may
/// take.
inline Patience patience_for(std::optional<std::chrono::milliseconds> peer_timeout,
                             std::chrono::milliseconds timeout, bool stays_on_host) {
  if (stays_on_host && !peer_timeout) return {timeout, "parallel.timeout_s"};
  return {net::peer_timeout_for(peer_timeout, stays_on_host), "fabric.peer_timeout_s"};
}

class Silence {
 public:
  /// To be called once in each `tick`. `heard`: when something has last arrived.
  std::chrono::milliseconds after(std::chrono::milliseconds tick,
                                  std::chrono::steady_clock::time_point heard) {
    so_far_ = heard == heard_ ? so_far_ + tick : std::chrono::milliseconds(0);
    heard_ = heard;
    return so_far_;
  }

 private:
  std::chrono::steady_clock::time_point heard_{};
  std::chrono::milliseconds so_far_{0};
};

}  // namespace bimetal::parallel::server
