#pragma once
// One message between each two ranks that have data for each other. A rank's data for itself is
// copied.

#include <cstddef>
#include <span>
#include <vector>

#include "bimetal/comm/mailbox/channel.h"

namespace bimetal::comm {

using ConstSegments = std::vector<std::span<const std::byte>>;
using MutableSegments = std::vector<std::span<std::byte>>;

/// Copies what a rank has for itself. The two may be the same memory: gathering in place is
/// allowed.
void copy_own(std::span<const std::byte> from, std::span<std::byte> to);

/// Rank r's `own` becomes output[r] on the root; `output` is ignored elsewhere.
void direct_gather(Channel& channel, std::span<const std::byte> own, const MutableSegments& output,
                   int root);

/// The root's input[r] becomes `own` of rank r; `input` is ignored elsewhere.
void direct_scatter(Channel& channel, const ConstSegments& input, std::span<std::byte> own,
                    int root);

/// Rank i's input[j] becomes rank j's output[i].
void direct_all_to_all(Channel& channel, const ConstSegments& input, const MutableSegments& output);

}  // namespace bimetal::comm
