#pragma once
// What a disk does when nothing but a file is copied: what offloading is measured by.

#include <chrono>
#include <cstdint>
#include <filesystem>

#include "bimetal/optim/offload/state_file.h"

namespace bimetal::optim {

/// One way after the other, each by itself.
struct PlainCopy {
  Transferred written;  ///< until it was on the disk, not in the system's cache alone
  Transferred read;     ///< back, past that cache (Linux; on a disk)
};

/// Writes up to `most` bytes into a file in `folder` and reads them back, by the calls that states
/// are written and read with (StateFile's); each way ends early once it has taken `patience`.
/// Nothing is left of the file. 0 bytes where that cannot be (no room, a disk that fails): states
/// will tell. Error(InvalidArgument) if `folder` is none.
PlainCopy copy_plainly(const std::filesystem::path& folder, std::uint64_t most,
                       std::chrono::milliseconds patience);

}  // namespace bimetal::optim
