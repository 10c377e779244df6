#pragma once
// How far a long piece of work on files has got, for whoever watches it from another thread.

#include <atomic>
#include <cstdint>

#include "bimetal/base/error.h"

namespace bimetal::progress {

/// Thread-safe.
class Meter {
 public:
  /// So many bytes are to be done, beyond those announced before.
  void expect(std::uint64_t bytes) { expected_ += bytes; }

  /// So many bytes more are done. Error(Aborted) once stop() was called: work ends here.
  void advance(std::uint64_t bytes) {
    done_ += bytes;
    require_going();
  }
  void require_going() const {
    if (stopped_) throw Error(ErrorCode::Aborted, "the work on the data was called off");
  }

  void stop() { stopped_ = true; }

  std::uint64_t done() const { return done_; }
  std::uint64_t expected() const { return expected_; }

 private:
  std::atomic<std::uint64_t> done_{0}, expected_{0};
  std::atomic<bool> stopped_{false};
};

}  // namespace bimetal::progress
