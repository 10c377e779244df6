#include "bimetal/c10d/group_calls.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace bimetal::c10d {
namespace {

constexpr std::chrono::seconds kForCallbacks{2};

Deadline for_callbacks(Deadline at_most) {
  return Deadline::at(std::min(at_most.time(), Deadline::after(kForCallbacks).time()));
}

}  // namespace

GroupCalls GroupCalls::of(comm::Group group, c10::intrusive_ptr<::c10d::Store> store) {
  auto vote = std::make_unique<ReleaseVote>(std::move(store), group.size());
  const auto on_timeout = [group](const Error& error) mutable { group.abort(error.what()); };
  return {group, std::make_shared<CallOrder>(std::move(vote), on_timeout),
          std::make_shared<CallbackThreads>()};
}

void GroupCalls::abort(const std::string& reason) {
  group.abort(reason);
  order->give_up();
}

void GroupCalls::close(Deadline deadline) {
  order->wait_until_none_is_held(for_callbacks(deadline));
  group.close(deadline);
  order->give_up();
  threads->wait_idle(for_callbacks(Deadline::after(kForCallbacks)));
}

}  // namespace bimetal::c10d
