#pragma once
// One process at a time brings a data set into a cache; the others that use the same cache wait for
// it, see how far it is, and then find the work done. The lock is advisory and goes with its
// holder, however that ends.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "bimetal/base/os_files.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/progress/meter.h"

namespace bimetal::data {

/// Where the file system has no locks, everybody is the holder. Use from one thread.
class CacheLock {
 public:
  /// Waits while somebody else holds the lock of that name, whose progress `meter` follows.
  /// Errors: Timeout once that has stood still for `patience`; Aborted once the meter is stopped;
  /// System if the cache cannot be written to.
  CacheLock(const Cache& cache, const std::string& name, std::chrono::milliseconds patience,
            progress::Meter& meter);
  ~CacheLock();
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

  /// Whether somebody has done the work since this object began to wait.
  bool done_meanwhile() const noexcept { return done_meanwhile_; }

  /// Tells those who wait that the work is done.
  void mark_done();

 private:
  class Teller;

  std::filesystem::path file_;
  std::unique_ptr<PathClaim> claim_;
  std::uint64_t times_done_ = 0;
  bool done_meanwhile_ = false;
  std::unique_ptr<Teller> teller_;
};

}  // namespace bimetal::data
