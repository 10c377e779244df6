#pragma once
// Long work between collectives, such as writing to a slow disk. A rank that is stuck in it is
// still found out.

#include <chrono>
#include <functional>
#include <string>

#include "bimetal/comm/group.h"

namespace bimetal::comm {

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
