#pragma once
// Checks users' arguments to a group: Error(InvalidArgument) that names the fault, thrown before
// anything is sent.

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "bimetal/comm/dtype.h"

namespace bimetal::comm {

/// Memory for its count, a known type, and a size that memory can have. `what` names it.
void check_buffer(const ConstBuffer& buffer, std::string_view what);

void check_reduce_op(ReduceOp op);

/// 0 ≤ rank < size. `what` names it: "root".
void check_rank(int rank, int size, std::string_view what);

/// A rank of the group other than `own`.
void check_peer(int peer, int own, int size);

/// Both buffers are valid and have one type, and whole.count == part.count × size.
void check_whole_and_part(const ConstBuffer& whole, std::string_view whole_name,
                          const ConstBuffer& part, std::string_view part_name, int size);

/// One count for each of `size` ranks, together the buffer's.
void check_counts(std::span<const std::size_t> counts, const ConstBuffer& buffer,
                  std::string_view what, int size);

/// The same where rank r's part has counts[r] elements: they make up the whole, and `own` has those
/// of rank `rank`.
void check_whole_and_own(std::span<const std::size_t> counts, const ConstBuffer& whole,
                         std::string_view whole_name, const ConstBuffer& own,
                         std::string_view own_name, int rank, int size);

/// Ranks of a group of `size`, at least one, none twice.
void check_subgroup(const std::vector<int>& ranks, int size);

}  // namespace bimetal::comm
