#include "bimetal/c10d/call_order.h"

#include <algorithm>
#include <utility>

namespace bimetal::c10d {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{20};  // for the outcome of a vote
// The watcher's thread looks at the clock for so long after a call was held, then sleeps.
constexpr std::chrono::seconds kAwake{1};

}  // namespace

class CallOrder::Section {
 public:
  Section(CallOrder* order, Items::iterator item) : order_(order), item_(item) {}
  CallOrder* order() const { return order_; }
  Items::iterator item() const { return item_; }

 private:
  CallOrder* const order_;
  const Items::iterator item_;
};

namespace {

thread_local CallOrder::SectionPtr current_section;

}  // namespace

CallOrder::Inside::Inside(SectionPtr section)
    : before_(std::exchange(current_section, std::move(section))) {}

CallOrder::Inside::~Inside() {
  current_section = std::move(before_);
}

CallOrder::CallOrder(std::unique_ptr<ReleaseVote> vote,
                     std::function<void(const Error&)> on_timeout)
    : vote_(std::move(vote)), on_timeout_(std::move(on_timeout)) {}

CallOrder::~CallOrder() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
  const Error error(ErrorCode::Aborted, "the process group ended before this call had begun");
  for (const auto& item : items_) {
    if (item.is_call()) item.call->fail(std::make_exception_ptr(error));
  }
}

/// Where the calls of this thread go: before this.
CallOrder::Items::iterator CallOrder::here() {
  const bool inside = current_section && current_section->order() == this;
  return inside ? current_section->item() : items_.end();
}

void CallOrder::note_begun() {
  ++begun_;
  moved_ = Clock::now();
  voted_ = decided_ = false;
}

void CallOrder::make(Call call) {
  std::lock_guard turn(turn_);
  {
    std::lock_guard lock(mutex_);
    const auto place = here();
    if (!over_ && (place != items_.begin() || voting())) {
      items_.insert(place, Item{std::move(call)});
      if (++held_ == 1) moved_ = Clock::now();
      if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
      if (asleep_ || voting()) changed_.notify_all();
      return;
    }
    note_begun();
  }
  call.begin();
}

CallOrder::SectionPtr CallOrder::open() {
  std::lock_guard lock(mutex_);
  return std::make_shared<Section>(this, items_.insert(here(), Item{}));
}

void CallOrder::close(const SectionPtr& section) {
  {
    std::lock_guard lock(mutex_);
    items_.erase(section->item());
  }
  begin_what_can();
}

CallOrder::Call CallOrder::take(Items::iterator item) {
  Call call = *std::move(item->call);
  items_.erase(item);
  return call;
}

/// A call that was taken has begun or failed: until then it counts as held, since whoever waits for
/// the held ones goes on to end the group.
void CallOrder::settle() {
  std::lock_guard lock(mutex_);
  if (--held_ == 0) changed_.notify_all();
}

std::optional<CallOrder::Call> CallOrder::next() {
  std::lock_guard lock(mutex_);
  auto item = items_.begin();
  if (over_) {
    item = std::ranges::find_if(items_, &Item::is_call);
    if (item == items_.end()) return std::nullopt;
  } else if (item == items_.end() || !item->is_call() || (voting() && item != passing_)) {
    return std::nullopt;
  }
  note_begun();
  return take(item);
}

void CallOrder::begin_what_can() {
  std::lock_guard turn(turn_);
  while (const auto call = next()) {
    try {
      call->begin();
    } catch (...) {
      call->fail(std::current_exception());
    }
    settle();
  }
}

void CallOrder::give_up() {
  std::lock_guard lock(mutex_);
  over_ = true;
  changed_.notify_all();
}

bool CallOrder::wait_until_none_is_held(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline.time(), [&] { return held_ == 0; });
}

void CallOrder::watch() {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    if (held_ == 0 && Clock::now() - moved_ > kAwake) {
      asleep_ = true;
      changed_.wait(lock, [&] { return ended_ || held_ > 0; });
      asleep_ = false;
    } else {
      changed_.wait_for(lock, voting() ? kLook : kPatience / 2);
    }
    if (held_ == 0 || ended_) continue;
    const bool stuck = Clock::now() - moved_ > kPatience;
    const bool votes = !over_ && !decided_ && (voted_ || stuck);
    lock.unlock();
    if (votes) vote();
    fail_overdue();
    begin_what_can();
    lock.lock();
  }
}

void CallOrder::fail_overdue() {
  std::vector<Call> overdue;
  {
    std::lock_guard lock(mutex_);
    for (auto item = items_.begin(); item != items_.end();) {
      const auto at = item++;
      if (at->is_call() && at->call->deadline.expired()) overdue.push_back(take(at));
    }
    if (overdue.empty()) return;
    over_ = true;
  }
  const Error error(ErrorCode::Timeout,
                    "a call has not begun in time, because it comes behind callbacks of an earlier "
                    "call's future, which have not returned: a callback must not wait for what "
                    "comes after it");
  for (const auto& call : overdue) {
    call.fail(std::make_exception_ptr(error));
    settle();
  }
  on_timeout_(error);
}

/// On the watcher's thread alone, without locks around the store, which may take its time.
void CallOrder::vote() {
  std::unique_lock lock(mutex_);
  if (items_.empty()) return;
  const auto number = begun_;
  const bool casts = !voted_;
  if (casts) {
    if (items_.front().is_call()) return;  // about to begin
    voted_ = true;
    passing_ = std::ranges::find_if(items_, &Item::is_call);
    if (passing_ == items_.end()) {
      voted_ = false;
      return;
    }
  }
  const bool refuses = items_.front().is_call() && items_.begin() != passing_;
  auto outcome = ReleaseVote::Outcome::stay;
  lock.unlock();
  try {
    outcome = casts ? vote_->cast(number) : refuses ? vote_->refuse(number) : vote_->look(number);
  } catch (const std::exception&) {
    // No store, no agreement: what is held waits for the callbacks.
  }
  lock.lock();
  if (outcome == ReleaseVote::Outcome::open || begun_ != number || over_) return;
  decided_ = true;
  if (outcome == ReleaseVote::Outcome::go) {
    items_.splice(items_.begin(), items_, passing_);
  }
}

}  // namespace bimetal::c10d
