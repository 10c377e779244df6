#pragma once
// The folder in which data that came over the network stays for the next job: $BIMETAL_CACHE, else
// $XDG_CACHE_HOME/bimetal, else ~/.cache/bimetal. In it
//   data/<digest>/     data sets that another rank has sent, by what they hold
//   urls/<digest>/     data sets fetched from a URL, by the URL
//   checksums/         of big files, so that they are read once (Content, below)
//   locks/             by which processes take turns
//   id                 a random number, by which ranks notice that they use the same folder
// Whatever lies in it can be removed while no job runs.
//
// A digest of a file, to compare copies on different machines.

#include <chrono>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "bimetal/base/files.h"
#include "bimetal/data/digest.h"
#include "bimetal/progress/observer.h"

namespace bimetal::data {

/// Size and digest of a file's contents. A gzipped file counts as its uncompressed contents: a
/// compressed and a plain copy are the same.
struct Content {
  std::uint64_t size = 0;  ///< bytes, uncompressed
  Digest digest{};
  bool operator==(const Content&) const = default;
};

/// Reads the whole file, in pieces; `meter` advances by the bytes of the file. Errors: System if it
/// cannot be read, CorruptData for damaged compression, Aborted once the meter is stopped.
Content content_of(const std::filesystem::path& file, progress::Meter& meter);

// The file system's facts about a file, without reading it (POSIX).

/// Two files of one machine with the same stamp are one file that has not changed in between, or
/// changed within the clock's tick.
struct FileStamp {
  std::uint64_t size = 0;        ///< bytes
  std::int64_t modified_ns = 0;  ///< of the file system's clock
  std::uint64_t device = 0, number = 0;
  auto operator<=>(const FileStamp&) const = default;
};

/// Error(System) names the file.
FileStamp file_stamp(const std::filesystem::path& file);

// Checksums of big files are kept, so that a job's start does not read a data set of many gigabytes
// each time. They lie in the cache (cache.h), one small file for each path.

/// Smaller files are read again sooner than it is worth leaving something behind.
inline constexpr std::uint64_t kWorthRemembering = std::uint64_t{64} << 20;

/// The digest remembered of a file at this path with this size and time of change; nothing if there
/// is none.
std::optional<Content> remembered_content(const std::filesystem::path& file,
                                          const FileStamp& stamp);

/// Remembers it for the next time. Left out where that would be no use (a small file) or not safe
/// (a file changed so lately that another change might bear the same time), and where the cache
/// cannot be written: the file is then read again.
void remember_content(const std::filesystem::path& file, const FileStamp& stamp,
                      const Content& content, std::uint64_t worth = kWorthRemembering);

/// Remembered, or read and then remembered. `meter` expects and advances by the bytes of the file
/// either way. Errors of content_of().
Content known_content(const std::filesystem::path& file, progress::Meter& meter);

/// The folder, absolute; nothing is created. Error(InvalidArgument) if no variable names it.
std::filesystem::path cache_root();

class Cache {
 public:
  /// Creates the folders. Error(System) if that cannot be done here, with advice.
  Cache();

  const std::filesystem::path& root() const noexcept { return root_; }

  /// The same for all processes that use this folder, on any machine, and for no others.
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
