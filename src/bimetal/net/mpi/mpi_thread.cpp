#include "bimetal/net/mpi/mpi_thread.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/net/mpi/library.h"

namespace bimetal::net::mpi {
namespace {

// How long the end of the program waits for the other ranks to end MPI with it.
constexpr std::chrono::seconds kLongestEnd{20};
constexpr std::chrono::seconds kLastRequests{1};
constexpr std::size_t kHostBytes = 256;
constexpr int kMostNumbers = 32767;  // the largest tag that every library allows

// Made once and never freed: its thread may outlive main.
MpiThread* the_thread = nullptr;
std::mutex the_thread_mutex;

LaunchEnvironment require_launcher() {
  if (const auto launched = launch_environment()) return *launched;
  throw Error(ErrorCode::InvalidArgument,
              "transport 'mpi' is for processes that mpirun, mpiexec or srun has started, and "
              "nothing says that this one was; start it as in: mpirun -n 4 bimetal …");
}

}  // namespace

MpiThread& MpiThread::of_process(Deadline deadline) {
  std::lock_guard one_at_a_time(the_thread_mutex);
  if (the_thread == nullptr) {
    require_launcher();
    the_thread = new MpiThread;
    std::thread([] { the_thread->run(); }).detach();
  }
  MpiThread& thread = *the_thread;
  std::unique_lock lock(thread.mutex_);
  if (!thread.changed_.wait_until(lock, deadline.time(),
                                  [&] { return thread.state_ != State::starting; })) {
    throw Error(ErrorCode::Timeout,
                "MPI has not started in time: every process that mpirun has started must come to "
                "this point");
  }
  if (thread.failure_) std::rethrow_exception(thread.failure_);
  if (thread.state_ != State::running) {
    throw Error(ErrorCode::Aborted, "the program is ending, and MPI with it");
  }
  return thread;
}

int MpiThread::next_number() {
  std::lock_guard lock(mutex_);
  if (numbers_ < kMostNumbers) return numbers_++;
  throw Error(ErrorCode::Unsupported,
              fmt::format("one process can't have more than {} meshes over MPI", kMostNumbers));
}

bool MpiThread::post(Task task) {
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::running && state_ != State::ending) return false;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
  return true;
}

void MpiThread::watch(Handle request, Ended ended) {
  requests_.push_back(request);
  ended_.push_back(std::move(ended));
}

void MpiThread::run() {
  try {
    start_mpi();
  } catch (...) {
    std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    state_ = State::failed;
    changed_.notify_all();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    state_ = State::running;
    changed_.notify_all();
    // Only now: the library's own work at exit comes after.
    std::atexit(end_at_exit);
  }
  for (;;) {
    const bool worked = run_tasks();
    if (test_requests() || worked) {
      back_off_.reset();
      continue;
    }
    if (may_end()) break;
    sleep();
  }
  end_mpi();
  std::lock_guard lock(mutex_);
  state_ = State::ended;
  changed_.notify_all();
}

void MpiThread::start_mpi() {
  library_ = load_library();
  owns_mpi_ = !library_->initialized();
  if (owns_mpi_) {
    const auto given = library_->init(ThreadLevel::funneled);
    if (given < ThreadLevel::funneled) {
      log(LogLevel::warning, "MPI: the library knows nothing of threads (level {})",
          static_cast<int>(given));
    }
  } else if (library_->thread_level() != ThreadLevel::multiple) {
    throw Error(ErrorCode::Unsupported,
                "this program has started MPI by itself, for calls of one thread alone; it must "
                "call MPI_Init_thread with MPI_THREAD_MULTIPLE to share it");
  }
  library_->return_errors(library_->world());
  communicator_ = library_->duplicate(library_->world());
  learn_world();
}

void MpiThread::learn_world() {
  world_.rank = library_->rank(communicator_);
  world_.size = library_->size(communicator_);
  world_.library = library_->version();
  const auto expected = require_launcher().world_size;
  if (expected && *expected != world_.size) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("mpirun has started {} processes, but {} ({}) finds {}: the library is "
                            "not the one that mpirun belongs to; name the right one by "
                            "BIMETAL_MPI_LIBRARY",
                            *expected, library_->name(), world_.library, world_.size));
  }
  std::array<std::byte, kHostBytes> own{};
  const std::string host = library_->processor_name();
  std::memcpy(own.data(), host.data(), std::min(host.size(), own.size() - 1));
  std::vector<std::byte> all(own.size() * static_cast<std::size_t>(world_.size));
  library_->all_gather(own, all, communicator_);
  for (int rank = 0; rank < world_.size; ++rank) {
    const auto* name =
        reinterpret_cast<const char*>(all.data() + own.size() * static_cast<std::size_t>(rank));
    world_.hosts.emplace_back(name);
  }
  log(LogLevel::info, "MPI: rank {} of {} on {}", world_.rank, world_.size, host);
}

/// True if there was anything to do.
bool MpiThread::run_tasks() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) task();
  return !tasks.empty();
}

/// True if any request has ended.
bool MpiThread::test_requests() {
  if (requests_.empty()) return false;
  try {
    library_->test(requests_, completions_);
  } catch (const Error& error) {
    fail_requests(error.what());
    return true;
  }
  if (completions_.empty()) return false;
  std::vector<std::pair<Ended, Completion>> due;
  for (auto& completion : completions_) {
    due.emplace_back(std::move(ended_[completion.index]), std::move(completion));
  }
  // From the back, so that what fills a gap has been looked at.
  std::ranges::sort(due, std::greater<>(), [](const auto& entry) { return entry.second.index; });
  for (const auto& [ended, completion] : due) {
    requests_[completion.index] = requests_.back();
    requests_.pop_back();
    if (completion.index < ended_.size() - 1) ended_[completion.index] = std::move(ended_.back());
    ended_.pop_back();
  }
  for (const auto& [ended, completion] : due) ended(completion);
  return true;
}

/// The library refuses to say how anything goes on.
void MpiThread::fail_requests(const std::string& reason) {
  give_up_order();
  requests_.clear();
  for (const auto& ended : std::exchange(ended_, {})) ended({0, 0, reason});
}

void MpiThread::sleep() {
  const auto pause = back_off_.pause();
  if (pause.count() == 0) return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, pause, [&] { return !tasks_.empty() || state_ == State::ending; });
}

/// Requests that are as good as over get a moment for it.
bool MpiThread::may_end() {
  std::lock_guard lock(mutex_);
  if (state_ != State::ending || !tasks_.empty()) return false;
  if (orderly_ && !requests_.empty() && !end_by_.expired()) return false;
  state_ = State::deaf;
  return true;
}

void MpiThread::end_at_exit() {
  MpiThread& thread = *the_thread;
  std::unique_lock lock(thread.mutex_);
  thread.state_ = State::ending;
  thread.end_by_ = Deadline::after(kLastRequests);
  thread.changed_.notify_all();
  thread.changed_.wait_for(lock, kLongestEnd, [&] { return thread.state_ == State::ended; });
}

/// MPI_Finalize waits for every rank. After a failure it would wait for those that are stuck or
/// gone: mpirun, which sees this process end without it, ends them.
void MpiThread::end_mpi() noexcept {
  if (!owns_mpi_ || !orderly_ || !requests_.empty()) return;
  try {
    library_->finalize();
  } catch (const Error& error) {
    log(LogLevel::warning, "MPI: {}", error.what());
  }
}

}  // namespace bimetal::net::mpi
