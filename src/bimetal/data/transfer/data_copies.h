#pragma once
// What each rank has of the job's data set, as the ranks tell each other, and what follows from it.
// No files are touched here.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/data/transfer/cache.h"
#include "bimetal/data/transfer/content.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"

namespace bimetal::data {

/// One file of a rank's copy.
struct FileFact {
  std::string path;               ///< on its host
  std::string identity;           ///< equal where ranks see the very same file; empty: alone
  std::uint64_t stored_size = 0;  ///< bytes as it lies there, perhaps compressed
  std::optional<Content> content = {};
};

/// One rank's copy: its files, in the order of data::dataset_file_names, or why there are none.
struct Copy {
  std::string host = {};
  std::vector<FileFact> files = {};
  ErrorCode code = ErrorCode::InvalidArgument;  ///< of the reason
  std::string missing = {};                     ///< the reason; empty: the copy is there

  bool there() const noexcept { return missing.empty(); }
};

comm::Bytes encode_copy(const Copy& copy);
/// Error(CorruptData) for bytes that are none.
Copy decode_copy(const comm::Bytes& bytes);

/// "rank 1 on pc2".
std::string rank_on_host(int rank, std::span<const Copy> copies);

/// The lowest rank that has a copy: what the others' are compared with. Error, with the reason of
/// rank 0, if nobody has.
int reference_rank(std::span<const Copy> copies);

/// Which of a rank's files it reads for its host: those whose content nobody knows, each by the
/// lowest rank that sees it. Indices into copies[rank].files.
std::vector<std::size_t> files_to_read(std::span<const Copy> copies, int rank);

/// Gives every file whose content some rank knows that content on all ranks that see it.
void share_contents(std::vector<Copy>& copies);

/// Error(CallMismatch) names the first rank whose copy differs from the reference rank's, the file,
/// both sizes and checksums, and what to do. All contents are known.
void require_equal_copies(std::span<const Copy> copies, const std::string& dataset);

/// What the whole data set holds: equal for equal copies.
Digest digest_of_copy(const Copy& copy);

/// Bytes of a copy as it lies there: what is sent.
std::uint64_t stored_bytes(const Copy& copy);

// A data set on its way into the cache of a machine that has none, whatever carries it there.

struct Delivery {
  std::string dataset;
  std::vector<SentFile> files;
  std::vector<Content> contents;
  std::filesystem::path target;  ///< in the receiver's cache; empty where nothing is received
  std::string receiver;          ///< for messages: "rank 1 on pc2"
};

/// What `copy`, all of whose contents are known, is sent as: its files are named by the dataset,
/// never by what comes over the network. Error(CorruptData) if it is no copy of that dataset.
Delivery delivery_of(const Copy& copy, const std::string& dataset, const Cache* cache,
                     std::string receiver);

/// Whether the cache holds the whole data set, undamaged.
bool in_cache(const Delivery& delivery, progress::Meter& meter);

/// `receive` fills an empty folder with the files, through to the disk; they are checked and moved
/// into the cache: complete, or not there at all. Errors: System for a disk that is full,
/// CorruptData for files that are not what they should be, and those of `receive`.
void keep_delivery(const Delivery& delivery, progress::Meter& meter,
                   const std::function<void(const std::filesystem::path&)>& receive);

/// Why a receiver is not sent what it misses; nothing if it is. `bytes`: how much that is.
std::optional<std::string> forbidden(const job::DataConfig& config);
std::optional<std::string> too_large(const job::DataConfig& config, std::uint64_t bytes);
Error not_sent(const std::string& receiver, const std::string& why_not, const std::string& missing,
               std::optional<int> rank = std::nullopt);

/// "no data on … (why): … sends 29.5 MiB to be kept there".
std::string sending_note(const std::string& receivers, const std::string& missing,
                         const std::string& sender, std::uint64_t bytes);

/// "29.5 MiB", "1.2 GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace bimetal::data
