#pragma once
// What people are told, in words, of what happens to a rank.

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

// What users are told of an exception that is not the project's own.

/// The error that says in one line what ended `who` ("rank 3"): OutOfMemory, Unsupported for an
/// operation without a deterministic kernel, or else Internal. `rank`: whom it names. To be called
/// where the exception is caught.
Error error_of(const std::exception& exception, const std::string& who, std::optional<int> rank);

// What people are told where a batch did not fit.

/// What is done about a rank's lack of memory, for people to read. `cap`: most that it gets from
/// now on.
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
