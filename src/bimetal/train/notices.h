#pragma once
// Texts for people on events of a rank.

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/worker_summary.h"

namespace bimetal::train {

// Texts for users on an exception that is not the project's own.

/// The error that says in one line what ended `who` ("rank 3"): OutOfMemory, Unsupported for an
/// operation without a deterministic kernel, or else Internal. `rank`: whom it names. To be called
/// where the exception is caught.
Error error_of(const std::exception& exception, const std::string& who, std::optional<int> rank);

// Texts for people on a batch that did not fit.

/// The remedy for a rank's lack of memory, for people to read. `cap`: most that it gets from now
/// on.
std::string remedy(const progress::RankFigures& rank, std::int64_t cap);

// Tells of ranks that are left without work, once each time.

/// Use from one thread.
class IdleRanks {
 public:
  /// A notice for each rank without samples in `shares` that had some in those before.
  void tell(const balance::Shares& shares, std::int64_t global_batch, progress::Observer& observer);

 private:
  std::vector<bool> idle_;
};

}  // namespace bimetal::train
