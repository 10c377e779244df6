#include "bimetal/comm/mailbox/transfers.h"

#include <utility>

namespace bimetal::comm {

Transfers::Ticket Transfers::begin_receive(std::vector<int> peers) {
  std::lock_guard lock(mutex_);
  throw_if_failed();
  for (const int peer : peers) ++under_way_[peer];
  receives_.push_back({std::move(peers)});
  return receives_.size() - 1;
}

void Transfers::receive_from(Ticket ticket, int peer) {
  std::lock_guard lock(mutex_);
  auto& receive = receives_[ticket];
  if (receive.ended) return;
  ++under_way_[peer];
  for (const int other : std::exchange(receive.peers, {peer})) leave(other);
}

void Transfers::end_receive(Ticket ticket) {
  std::unique_lock lock(mutex_);
  receives_[ticket].ended = true;
  for (const int peer : receives_[ticket].peers) leave(peer);
  end_one(lock);
}

void Transfers::begin_send(int peer) {
  std::lock_guard lock(mutex_);
  throw_if_failed();
  ++under_way_[peer];
  ++sends_;
}

void Transfers::end_send(int peer) {
  std::unique_lock lock(mutex_);
  --sends_;
  leave(peer);
  end_one(lock);
}

void Transfers::leave(int peer) {
  const auto found = under_way_.find(peer);
  if (--found->second == 0) under_way_.erase(found);
}

void Transfers::end_one(std::unique_lock<std::mutex>& lock) {
  // Under the lock: a waiter may destroy this object as soon as it sees the end. Nobody is woken
  // in vain: a thread's waking costs as much as moving thousands of bytes.
  if (eager_waiters_ > 0 || idle()) changed_.notify_all();
  if (!idle() || !when_idle_) return;
  const auto action = std::exchange(when_idle_, nullptr);
  lock.unlock();
  action();
}

void Transfers::fail(const Failure& failure) {
  std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
  changed_.notify_all();
}

std::optional<Failure> Transfers::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

void Transfers::throw_if_failed() const {
  if (failure_) throw failure_->to_error();
}

template <typename Condition>
void Transfers::wait_eagerly(Condition condition) {
  std::unique_lock lock(mutex_);
  awaited_.reset();  // one thread runs the call: it does not wait by other means now
  ++eager_waiters_;
  changed_.wait(lock, [&] { return failure_ || condition(); });
  --eager_waiters_;
  throw_if_failed();
}

void Transfers::wait_received(Ticket ticket) {
  wait_eagerly([&] { return receives_[ticket].ended; });
}

void Transfers::wait_sent() {
  wait_eagerly([&] { return sends_ == 0; });
}

void Transfers::wait_all() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ || idle(); });
  throw_if_failed();
}

void Transfers::wait_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return idle(); });
}

void Transfers::when_idle(std::function<void()> action) {
  {
    std::lock_guard lock(mutex_);
    if (!idle()) {
      when_idle_ = std::move(action);
      return;
    }
  }
  action();
}

void Transfers::await(std::optional<int> peer) {
  std::lock_guard lock(mutex_);
  awaited_ = peer;
}

std::set<int> Transfers::peers() const {
  std::lock_guard lock(mutex_);
  std::set<int> result;
  for (const auto& [peer, number] : under_way_) result.insert(result.end(), peer);
  if (awaited_) result.insert(*awaited_);
  return result;
}

}  // namespace bimetal::comm
