// Calls in flight, one by one and in queues.

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

#include "bimetal/capi/boundary.h"

namespace bimetal::capi {

/// Belongs to the works that it watches, too, which may live longer than its handle.
class DoneKeys {
 public:
  void put(std::uint64_t key) {
    {
      std::lock_guard lock(mutex_);
      keys_.push_back(key);
    }
    changed_.notify_one();
  }

  /// False if there is none by the deadline.
  bool take(std::uint64_t& key, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, deadline.time(), [&] { return !keys_.empty(); })) return false;
    key = keys_.front();
    keys_.pop_front();
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::uint64_t> keys_;
};

}  // namespace bimetal::capi

using namespace bimetal;

namespace {

std::int32_t outcome_of(const comm::Work& work) {
  const auto error = work.error();
  return error ? capi::status_of(error) : BIMETAL_OK;
}

}  // namespace

struct bimetal_queue {
  std::shared_ptr<capi::DoneKeys> keys = std::make_shared<capi::DoneKeys>();
};

extern "C" {

std::int32_t bimetal_work_wait(const bimetal_work* work, std::int64_t timeout_ms) {
  if (work == nullptr) return BIMETAL_OK;
  if (timeout_ms < 0) return capi::guarded([&] { work->work.wait(); });
  bool done = false;
  const auto status = capi::guarded([&] { done = work->work.wait_until(capi::after(timeout_ms)); });
  if (status != BIMETAL_OK) return status;
  return done ? outcome_of(work->work) : BIMETAL_PENDING;
}

std::int32_t bimetal_work_test(const bimetal_work* work) {
  if (work == nullptr) return BIMETAL_OK;
  return work->work.done() ? outcome_of(work->work) : BIMETAL_PENDING;
}

std::int32_t bimetal_work_sender(const bimetal_work* work) {
  return work == nullptr ? -1 : work->work.sender();
}

void bimetal_work_free(bimetal_work* work) {
  delete work;
}

std::int32_t bimetal_queue_new(bimetal_queue** queue) {
  return capi::guarded([&] { *queue = new bimetal_queue; });
}

std::int32_t bimetal_queue_watch(bimetal_queue* queue, const bimetal_work* work,
                                 std::uint64_t key) {
  return capi::guarded([&] {
    if (work == nullptr) return queue->keys->put(key);
    work->work.on_done([keys = queue->keys, key](const std::exception_ptr&) { keys->put(key); });
  });
}

std::int32_t bimetal_queue_put(bimetal_queue* queue, std::uint64_t key) {
  return capi::guarded([&] { queue->keys->put(key); });
}

std::int32_t bimetal_queue_next(bimetal_queue* queue, std::int64_t timeout_ms, std::uint64_t* key) {
  bool found = false;
  const auto status =
      capi::guarded([&] { found = queue->keys->take(*key, capi::after(timeout_ms)); });
  if (status != BIMETAL_OK) return status;
  return found ? BIMETAL_OK : BIMETAL_PENDING;
}

void bimetal_queue_free(bimetal_queue* queue) {
  delete queue;
}

}  // extern "C"
