#pragma once
// What the calls of a process group need: the group, their order, and threads for their futures.

#include <memory>

#include "bimetal/c10d/call_order.h"
#include "bimetal/c10d/callback_threads.h"
#include "bimetal/comm/group.h"

namespace bimetal::c10d {

/// Copies are of the same. Thread-safe.
struct GroupCalls {
  comm::Group group;
  std::shared_ptr<CallOrder> order;
  std::shared_ptr<CallbackThreads> threads;

  /// `store` is the group's alone, and the same on all its ranks.
  static GroupCalls of(comm::Group group, c10::intrusive_ptr<::c10d::Store> store);

  /// Ends everything in flight, here and on the other ranks; what is held back fails, too.
  void abort(const std::string& reason);

  /// The group's orderly end. Callbacks that still run, and calls that they hold back, get a few
  /// seconds, not until `deadline`: nobody knows what they wait for.
  void close(Deadline deadline);
};

}  // namespace bimetal::c10d
