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

/// For a receive or send that is posted ahead: the other side may be long in coming, and whoever
/// waits for the work says how long it may take.
inline constexpr std::chrono::hours kPosted{24 * 7};

using Bytes = std::vector<std::byte>;

/// Every rank's bytes, in order of ranks. Collective; lengths may differ. Errors, beside those of
/// the group: CorruptData for a length that no rank can mean, naming it; OutOfMemory.
std::vector<Bytes> all_gather_bytes(Group group, std::span<const std::byte> mine,
                                    Deadline deadline);

/// The same for text.
std::vector<std::string> all_gather_text(Group group, const std::string& mine, Deadline deadline);

/// `root`'s bytes, on every rank. Collective; `bytes` is ignored elsewhere. Errors as above.
Bytes broadcast_bytes(Group group, Bytes bytes, int root, Deadline deadline);

/// The same for text.
std::string broadcast_text(Group group, std::string_view text, int root, Deadline deadline);

// Checks the sizes that ranks announce before they send (exchange.h).

/// The most that ranks may say of themselves. A training state may have as many bytes as a machine
/// has memory.
inline constexpr std::int64_t kMostSaid = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostSent = std::int64_t{1} << 44;

/// `size` of `rank`. Error(CorruptData), naming it, below 0 and above `most`.
std::size_t checked_size(std::int64_t size, std::int64_t most, int rank);

/// The largest size of the ranks' texts, given in the ranks' order; each is at most kMostSaid. All
/// ranks have the same numbers, and so the same error.
std::size_t longest_said(std::span<const std::int64_t> sizes);

// Work that one rank does for all, such as reading a file that only it needs to see. If it fails,
// all ranks learn why at once.

/// Calls `action` on rank 0 alone, and returns its result on every rank. `action` must not use the
/// group. If it throws, all ranks throw rank 0's code and words. Collective. Further errors:
/// broadcast_bytes'.
std::string from_rank_0(Group group, const std::function<std::string()>& action, Deadline deadline);

/// The same of what gives nothing.
void on_rank_0(Group group, const std::function<void()>& action, Deadline deadline);

/// Every rank's value, in order of ranks. `fields(wire, value)` lists a value's fields
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

/// Does `work` on every rank, each its own, for as long as it takes. A thread beside it tells rank
/// 0 now and then that this rank lives, and hears from it of the others. Returns when all are
/// through. Collective; `work` may use the group. When a rank is lost or silent, that thread calls
/// `call_off`, which ends any other wait of `work`, such as one on another group.
///
/// Throws what `work` throws, and then does not wait for the others, who learn nothing of it here:
/// they go on, and watch each other as long as rank 0 does. A rank that says nothing for `timeout`
/// (it is stopped, or its machine sleeps) ends the group on all ranks with Error(Timeout), which
/// names it and says during what: `doing` is "a checkpoint was being saved". Otherwise the group's
/// errors.
void do_watched(Group group, std::chrono::milliseconds timeout, const std::string& doing,
                const std::function<void()>& work, std::function<void()> call_off = {});

}  // namespace bimetal::comm
