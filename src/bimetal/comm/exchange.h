#pragma once
// Exchanges byte strings of any length between the ranks: for messages once per job, not once per
// step.
//
// Exchanges structs between the ranks by a list of their fields.
//
// Long work between collectives, such as writing to a slow disk. A rank that is stuck in it is
// still found out.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bimetal/base/wire_fields.h"
#include "bimetal/comm/group.h"

namespace bimetal::comm {

/// Another group of the same ranks, whose calls have an order of their own. Collective.
Group group_of_its_own(Group group);

using Bytes = std::vector<std::byte>;

/// What every rank has put in, rank by rank. Collective; lengths may differ. Errors, beside those
/// of the group: CorruptData for a length that no rank can mean, naming it; OutOfMemory.
std::vector<Bytes> all_gather_bytes(Group group, std::span<const std::byte> mine,
                                    Deadline deadline);

/// The same for text.
std::vector<std::string> all_gather_text(Group group, const std::string& mine, Deadline deadline);

/// `root`'s bytes, on every rank. Collective; `bytes` is ignored elsewhere. Errors as above.
Bytes broadcast_bytes(Group group, Bytes bytes, int root, Deadline deadline);

/// The same for text.
std::string broadcast_text(Group group, std::string_view text, int root, Deadline deadline);

// Checks the sizes that ranks announce before they send (exchange.h).

/// What ranks say of themselves; a training state may have as many bytes as a machine has memory.
inline constexpr std::int64_t kMostSaid = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostSent = std::int64_t{1} << 44;

/// `size` of `rank`. Error(CorruptData), naming it, below 0 and above `most`.
std::size_t checked_size(std::int64_t size, std::int64_t most, int rank);

/// The largest of what the ranks, in their order, have to say; each is at most kMostSaid. All ranks
/// have the same numbers, and so the same error.
std::size_t longest_said(std::span<const std::int64_t> sizes);

// Work that one rank does for all, such as reading a file that only it needs to see. If it fails,
// all ranks learn why at once.

/// What `action` gives on rank 0, on every rank; elsewhere it is not called, and it must not use
/// the group. Where it throws, all ranks do, with rank 0's code and words. Collective. Errors,
/// beside that: broadcast_bytes'.
std::string from_rank_0(Group group, const std::function<std::string()>& action, Deadline deadline);

/// The same of what gives nothing.
void on_rank_0(Group group, const std::function<void()>& action, Deadline deadline);

/// What every rank has put in, rank by rank. `fields(wire, value)` lists a value's fields
/// (base/wire_fields.h). Collective. Errors: those of all_gather_bytes(), and CorruptData.
template <typename Value, typename Fields>
std::vector<Value> all_gather_fields(Group group, Value mine, Deadline deadline,
                                     const Fields& fields) {
  FieldWriter out;
  fields(out, mine);
  std::vector<Value> all;
  for (const auto& bytes : all_gather_bytes(std::move(group), std::move(out).take(), deadline)) {
    FieldReader in(bytes);
    fields(in, all.emplace_back());
    in.expect_end();
  }
  return all;
}

/// Does `work` on every rank, each its own, for as long as it takes, while a thread beside it tells
/// rank 0 every now and then that this rank lives, and hears from it of the others. Returns when
/// all are through. Collective; `work` may use the group. What else `work` waits for, another group
/// say, `call_off` ends, which that thread calls where a rank was lost or silent.
///
/// Throws what `work` throws, and then does not wait for the others, who learn nothing of it here:
/// they go on, and watch each other as long as rank 0 does. A rank of which nothing is heard for
/// `timeout` (it is stopped; its machine sleeps) ends the group on all ranks with Error(Timeout),
/// which names it and says during what: `doing` is "a checkpoint was being saved". Otherwise the
/// group's errors.
void do_watched(Group group, std::chrono::milliseconds timeout, const std::string& doing,
                const std::function<void()>& work, std::function<void()> call_off = {});

}  // namespace bimetal::comm
