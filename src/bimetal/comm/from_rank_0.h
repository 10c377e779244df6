#pragma once
// Work that one rank does for all, such as reading a file that only it needs to see. If it fails,
// all ranks learn why at once.

#include <functional>
#include <string>

#include "bimetal/comm/group.h"

namespace bimetal::comm {

/// What `action` gives on rank 0, on every rank; elsewhere it is not called, and it must not use the
/// group. Where it throws, all ranks do, with rank 0's code and words. Collective. Errors, beside
/// that: broadcast_bytes'.
std::string from_rank_0(Group group, const std::function<std::string()>& action, Deadline deadline);

/// The same of what gives nothing.
void on_rank_0(Group group, const std::function<void()>& action, Deadline deadline);

}  // namespace bimetal::comm
