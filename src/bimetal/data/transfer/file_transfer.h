#pragma once
// Files from one rank to others, in pieces, so that memory is bounded whatever their size.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/progress/observer.h"

namespace bimetal::data {

/// A file that is sent: its name without folders, and its bytes as it lies there.
struct SentFile {
  std::string name;
  std::uint64_t size = 0;
};

struct TransferOptions {
  std::chrono::milliseconds chunk_timeout{std::chrono::minutes(1)};  ///< for each piece
  std::size_t chunk_bytes = std::size_t{4} << 20;                    ///< two are held in memory
};

/// The part of the group's rank 0, whose files go to all others. Collective with receive_files() on
/// those. Errors: System if a file cannot be read, CorruptData if it has changed its size, Aborted
/// once the meter is stopped, and the fabric's. After an error the group must be aborted.
void send_files(comm::Group group, const std::filesystem::path& folder,
                const std::vector<SentFile>& files, progress::Meter& meter,
                const TransferOptions& options = {});

/// Writes the files into `folder`, which exists, through to the disk. Errors: System if one cannot
/// be written (half-written files stay: the folder is the caller's to remove), and as above.
void receive_files(comm::Group group, const std::filesystem::path& folder,
                   const std::vector<SentFile>& files, progress::Meter& meter,
                   const TransferOptions& options = {});

// Files read and written in pieces, on their way between machines.

/// Errors are Error(System) and name the file.
class PieceReader {
 public:
  explicit PieceReader(std::filesystem::path path);

  /// The next bytes, as many as `piece` has. Error(CorruptData) if the file has no more.
  void read(std::span<std::byte> piece);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  friend class PieceWriter;

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// A new file. Errors are Error(System) and name it.
class PieceWriter {
 public:
  explicit PieceWriter(std::filesystem::path path);

  void write(std::span<const std::byte> piece);

  /// Brings all of it to the disk.
  void sync();

 private:
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, PieceReader::Close> file_;
};

// Data sets that lie at a URL. The caller chooses who talks to the other side (launch/fetch_url.h
// asks Python's fsspec). Here is how the files are kept.

struct FetchRequest {
  std::string url;                 ///< of the folder; may hold secrets
  std::vector<std::string> names;  ///< each lies there as NAME or NAME.gz
  std::filesystem::path into;      ///< an empty folder to fill
  std::filesystem::path current;   ///< filled by an earlier fetch; may not exist
  std::chrono::milliseconds patience{
      std::chrono::minutes(1)};  ///< longest silence of the other side
};

enum class Fetched {
  unchanged,  ///< `current` is as it is at the URL; nothing was fetched
  complete,   ///< all files are whole in `into`, and on the disk
};

/// Errors are Error; their messages hold none of the URL's secrets.
using Fetch = std::function<Fetched(const FetchRequest&, progress::Meter&)>;

/// Brings the dataset's files from `url` into the cache, or finds that they are there unchanged,
/// and returns their folder. If it is interrupted at any point, the former files stay. If several
/// processes want the same files at once, one fetches them and the others wait. Errors: Unsupported
/// without `fetch`; those of CacheLock and of `fetch`.
std::filesystem::path fetch_dataset(const Cache& cache, const std::string& url,
                                    const std::vector<std::string>& names, const Fetch& fetch,
                                    std::chrono::milliseconds patience, progress::Meter& meter);

}  // namespace bimetal::data
