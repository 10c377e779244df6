#include "bimetal/progress/running_task.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

namespace bimetal::progress {

using std::chrono::milliseconds;

struct RunningTask::State {
  Meter meter;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
};

RunningTask::RunningTask(Task task) : state_(std::make_shared<State>()) {
  if (!task) {
    state_->done = true;
    return;
  }
  thread_ = std::thread([state = state_, task = std::move(task)] {
    std::exception_ptr error;
    try {
      task(state->meter);
    } catch (...) {
      error = std::current_exception();
    }
    const std::scoped_lock lock(state->mutex);
    state->error = error;
    state->done = true;
    state->changed.notify_all();
  });
}

RunningTask::~RunningTask() {
  state_->meter.stop();
  if (!thread_.joinable()) return;
  if (wait(kToEnd)) {
    thread_.join();
  } else {
    thread_.detach();  // stuck in the system; it owns all that it uses
  }
}

bool RunningTask::done_within(milliseconds time) {
  const bool done = wait(time);
  if (done && state_->error) std::rethrow_exception(state_->error);
  return done;
}

const Meter& RunningTask::meter() const {
  return state_->meter;
}

bool RunningTask::wait(milliseconds time) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, time, [this] { return state_->done; });
}

}  // namespace bimetal::progress
