#pragma once
// Files from one rank to others, in pieces, so that memory is bounded whatever their size.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/progress/meter.h"

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

}  // namespace bimetal::data
