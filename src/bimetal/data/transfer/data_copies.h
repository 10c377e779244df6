#pragma once
// The ranks' copies of the job's data set, as they tell each other, and the plan that follows from
// them. No files are touched here.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/data/transfer/cache.h"

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

/// The lowest rank that has a copy: the others' copies are compared with it. Error, with the reason
/// of rank 0, if nobody has.
int reference_rank(std::span<const Copy> copies);

/// Which of a rank's files it reads for its host: those whose content nobody knows, each by the
/// lowest rank that sees it. Indices into copies[rank].files.
std::vector<std::size_t> files_to_read(std::span<const Copy> copies, int rank);

/// Gives every file whose content some rank knows that content on all ranks that see it.
void share_contents(std::vector<Copy>& copies);

/// Error(CallMismatch) names the first rank whose copy differs from the reference rank's, the file,
/// both sizes and checksums, and what to do. All contents are known.
void require_equal_copies(std::span<const Copy> copies, const std::string& dataset);

/// A digest of the whole data set: equal for equal copies.
Digest digest_of_copy(const Copy& copy);

/// Bytes of a copy as it is stored, and sent.
std::uint64_t stored_bytes(const Copy& copy);

}  // namespace bimetal::data
