#pragma once
// Tells of ranks that are left without work, once each time.

#include <cstdint>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/progress/observer.h"

namespace bimetal::train {

/// Use from one thread.
class IdleRanks {
 public:
  /// A notice for each rank without samples in `shares` that had some in those before.
  void tell(const balance::Shares& shares, std::int64_t global_batch, progress::Observer& observer);

 private:
  std::vector<bool> idle_;
};

}  // namespace bimetal::train
