#pragma once
// Exchanges byte strings of any length between the ranks: for messages once per job, not once per
// step.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"

namespace bimetal::comm {

using Bytes = std::vector<std::byte>;

/// What every rank has put in, rank by rank. Collective; lengths may differ. Errors, beside those
/// of the group: CorruptData for a length that no rank can mean, naming it; OutOfMemory.
std::vector<Bytes> all_gather_bytes(Group group, std::span<const std::byte> mine,
                                    Deadline deadline);

/// The same for text.
std::vector<std::string> all_gather_text(Group group, const std::string& mine, Deadline deadline);

/// `root`'s bytes, on every rank. Collective; `bytes` is ignored elsewhere. Errors as above.
Bytes broadcast_bytes(Group group, Bytes bytes, int root, Deadline deadline);

}  // namespace bimetal::comm
