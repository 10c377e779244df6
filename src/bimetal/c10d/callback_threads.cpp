#include "bimetal/c10d/callback_threads.h"

#include <thread>
#include <utility>

#include "bimetal/c10d/backend_error.h"

namespace bimetal::c10d {
namespace {

// Threads that wait for tasks: a callback that waits for a call needs a second one, again and
// again.
constexpr std::size_t kKept = 4;

// Whose task this thread runs.
thread_local const void* served = nullptr;

}  // namespace

CallbackThreads::~CallbackThreads() {
  std::lock_guard lock(shared_->mutex);
  shared_->ended = true;
  shared_->changed.notify_all();
}

void CallbackThreads::run(std::function<void()> task) {
  std::lock_guard lock(shared_->mutex);
  if (shared_->tasks.size() >= shared_->waiting) std::thread(serve, shared_).detach();
  shared_->tasks.push_back(std::move(task));
  shared_->changed.notify_all();
}

bool CallbackThreads::wait_idle(Deadline deadline) {
  std::unique_lock lock(shared_->mutex);
  const std::size_t own = served == shared_.get() ? 1 : 0;
  return shared_->changed.wait_until(
      lock, deadline.time(), [&] { return shared_->tasks.empty() && shared_->running <= own; });
}

void CallbackThreads::serve(const std::shared_ptr<Shared>& shared) {
  enter_thread();
  served = shared.get();
  std::unique_lock lock(shared->mutex);
  for (;;) {
    if (shared->tasks.empty()) {
      if (shared->ended) return;
      if (shared->waiting >= kKept) {
        lock.unlock();
        leave_thread();
        return;
      }
      ++shared->waiting;
      shared->changed.wait(lock, [&] { return shared->ended || !shared->tasks.empty(); });
      --shared->waiting;
      continue;
    }
    auto task = std::move(shared->tasks.front());
    shared->tasks.pop_front();
    ++shared->running;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    --shared->running;
    shared->changed.notify_all();
  }
}

}  // namespace bimetal::c10d
