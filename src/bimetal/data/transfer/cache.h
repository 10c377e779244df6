#pragma once
// The folder in which data that came over the network stays for the next job: $BIMETAL_CACHE, else
// $XDG_CACHE_HOME/bimetal, else ~/.cache/bimetal. In it
//   data/<digest>/     data sets that another rank has sent, by what they hold
//   urls/<digest>/     data sets fetched from a URL, by the URL
//   checksums/         of big files, so that they are read once (content.h)
//   locks/             by which processes take turns
//   id                 a random number, by which ranks notice that they use the same folder
// Whatever lies in it can be removed while no job runs.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "bimetal/base/files.h"
#include "bimetal/data/transfer/content.h"
#include "bimetal/progress/observer.h"

namespace bimetal::data {

/// Where it is, absolute; nothing is created. Error(InvalidArgument) if no variable tells.
std::filesystem::path cache_root();

class Cache {
 public:
  /// Creates what is missing. Error(System) if that cannot be done here, with what to do.
  Cache();

  const std::filesystem::path& root() const noexcept { return root_; }

  /// The same for all processes that use this folder, on whichever machine, and for no others.
  const std::string& id() const noexcept { return id_; }

  std::filesystem::path data_folder(const Digest& contents) const;
  std::filesystem::path url_folder(const Digest& url) const;
  /// `name` is that of a file.
  std::filesystem::path lock_file(const std::string& name) const;

 private:
  std::filesystem::path root_;
  std::string id_;
};

// One process at a time brings a data set into a cache; the others that use the same cache wait for
// it, see how far it is, and then find the work done. The lock is advisory and goes with its
// holder, however that ends.

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
