#pragma once
// The one thread of a process that talks to MPI. It starts MPI, makes progress on all operations,
// and ends MPI.
//
// MPI promises little to threads. A library may allow calls only from the thread that has started
// it (MPI_THREAD_FUNNELED), and locking for more costs it speed. One thread for all calls is right
// with every library. A program that has started MPI by itself keeps the right to end it. It must
// then have asked for MPI_THREAD_MULTIPLE.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/net/mpi/library.h"

namespace bimetal::net::mpi {

// How long a thread that can only poll may sleep before it polls again.

/// MPI cannot wake a sleeping thread when a message comes. So the thread first asks without a
/// pause. Yielding in between would be worse: on a busy machine a thread that yields waits for the
/// others' time slices to end, while one that sleeps is woken before them. Then it sleeps for an
/// eighth of the time that nothing has happened, 1 ms at most. An answer is thus late by an eighth
/// at most, and an idle rank takes less than a hundredth of a core.
class BackOff {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::microseconds kAtOnce{50};
  static constexpr std::chrono::microseconds kShortest{10};
  static constexpr std::chrono::microseconds kLongest{1000};

  /// Something has happened.
  void reset(Clock::time_point now = Clock::now()) { since_ = now; }

  /// How long to sleep now; 0: not at all.
  std::chrono::microseconds pause(Clock::time_point now = Clock::now()) const {
    const auto idle = std::chrono::duration_cast<std::chrono::microseconds>(now - since_);
    if (idle < kAtOnce) return std::chrono::microseconds(0);
    return std::clamp(idle / 8, kShortest, kLongest);
  }

 private:
  Clock::time_point since_ = Clock::now();
};

/// This process's place among those that mpirun has started.
struct World {
  int rank = 0;
  int size = 1;
  std::vector<std::string> hosts;  ///< by rank, as MPI calls them
  std::string library;             ///< its own words
};

class MpiThread {
 public:
  using Task = std::function<void()>;
  using Ended = std::function<void(const Completion&)>;

  /// The process's one. The first call starts MPI, which every process of the job must do. Errors:
  /// Unsupported (no library, or the program's own MPI allows one thread alone), InvalidArgument if
  /// mpirun has not started this process or the library is not mpirun's, Timeout if not all come.
  static MpiThread& of_process(Deadline deadline);

  const World& world() const noexcept { return world_; }

  /// Runs `task`, which must not throw, on the thread, after those posted before. False, and
  /// nothing is done, once the program is ending. Thread-safe.
  bool post(Task task);

  /// The rest is for tasks, on the thread itself.
  Library& library() noexcept { return *library_; }
  /// For this project's messages alone, whatever else the program does with MPI.
  Handle communicator() const noexcept { return communicator_; }
  /// Calls `ended` once when the request has ended.
  void watch(Handle request, Ended ended);
  /// Something was not brought to its end: MPI cannot be ended in good order any more.
  void give_up_order() noexcept { orderly_ = false; }

  /// A number for a mesh, the same on every rank if all make theirs in the same order. Thread-safe.
  int next_number();

 private:
  MpiThread() = default;

  static void end_at_exit();
  void run();
  void start_mpi();
  void learn_world();
  bool may_end();
  void end_mpi() noexcept;
  bool run_tasks();
  bool test_requests();
  void fail_requests(const std::string& reason);
  void sleep();

  World world_;
  std::unique_ptr<Library> library_;
  Handle communicator_ = 0;
  bool owns_mpi_ = false;
  bool orderly_ = true;

  // Requests under way and their continuations, side by side.
  std::vector<Handle> requests_;
  std::vector<Ended> ended_;
  std::vector<Completion> completions_;
  BackOff back_off_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Task> tasks_;
  /// `ending`: present requests are done; `deaf`: nothing more is taken.
  enum class State { starting, running, failed, ending, deaf, ended } state_ = State::starting;
  std::exception_ptr failure_;
  Deadline end_by_ = Deadline::after({});
  int numbers_ = 0;
};

}  // namespace bimetal::net::mpi
