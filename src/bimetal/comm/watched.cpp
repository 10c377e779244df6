#include "bimetal/comm/watched.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"

namespace bimetal::comm {
namespace {

using std::chrono::milliseconds;

/// Messages with it are this file's alone.
constexpr std::uint64_t kTag = 0x11fe;

/// What a rank says of itself in a round, and rank 0 of all.
enum Standing : std::int64_t { through = 0, busy = 1, gave_up = 2 };

/// The rounds of one rank, on a thread of their own. They are messages to and from rank 0, which
/// keep out of the way of the collectives that the work may issue.
class Rounds {
 public:
  Rounds(Group group, milliseconds timeout, std::function<void()> call_off)
      : group_(std::move(group)),
        call_off_(std::move(call_off)),
        timeout_(timeout),
        patience_(group_.rank() == 0 ? timeout : timeout + timeout / 2),
        interval_(std::min(timeout / 4, milliseconds(250))),
        left_(static_cast<std::size_t>(group_.size())),
        thread_([this] { run(); }) {}
  ~Rounds() {
    if (thread_.joinable()) end(gave_up);
  }
  Rounds(const Rounds&) = delete;
  Rounds& operator=(const Rounds&) = delete;

  milliseconds patience() const noexcept { return patience_; }

  /// Waits for the last round. What went wrong in them, if anything.
  std::exception_ptr end(Standing standing) {
    {
      std::lock_guard lock(mutex_);
      mine_ = standing;
    }
    changed_.notify_one();
    thread_.join();
    return failed_;
  }

 private:
  void run() try {
    while (round(next_standing()) == busy) {
    }
  } catch (const std::exception&) {
    failed_ = std::current_exception();
    if (call_off_) call_off_();
  }

  Standing next_standing() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, interval_, [this] { return mine_ != busy; });
    return mine_;
  }

  /// What becomes of the rounds. Who gives up has no part in them from then on; without rank 0
  /// there are none.
  std::int64_t round(std::int64_t standing) {
    if (group_.rank() > 0) {
      send(standing, 0);
      return standing == gave_up ? gave_up : receive(0, Deadline::after(patience_));
    }
    const auto deadline = Deadline::after(patience_);
    for (int peer = 1; peer < group_.size(); ++peer) {
      if (left_[static_cast<std::size_t>(peer)]) continue;
      const auto theirs = receive(peer, deadline);
      left_[static_cast<std::size_t>(peer)] = theirs == gave_up;
      if (theirs == busy) standing = std::max<std::int64_t>(standing, busy);
    }
    for (int peer = 1; peer < group_.size(); ++peer) {
      if (!left_[static_cast<std::size_t>(peer)]) send(standing, peer);
    }
    return standing;
  }

  void send(std::int64_t number, int peer) {
    const std::vector<std::int64_t> numbers = {number};
    group_.send(buffer(std::span(numbers)), peer, kTag, Deadline::after(timeout_)).wait();
  }
  std::int64_t receive(int peer, Deadline deadline) {
    std::vector<std::int64_t> numbers(1);
    group_.recv(buffer(std::span(numbers)), peer, kTag, deadline).wait();
    return numbers.front();
  }

  Group group_;
  const std::function<void()> call_off_;
  const milliseconds timeout_;
  /// Longest wait for a message. The others wait longer than rank 0, so that it is rank 0 that
  /// names the silent one.
  const milliseconds patience_;
  const milliseconds interval_;  ///< between a busy rank's messages
  std::vector<bool> left_;       ///< on rank 0, of each: it has given up
  std::mutex mutex_;
  std::condition_variable changed_;
  Standing mine_ = busy;
  std::exception_ptr failed_;
  std::thread thread_;  ///< last: it uses the others
};

[[noreturn]] void throw_of_round(const std::exception_ptr& failed, milliseconds waited,
                                 const std::string& doing) {
  try {
    std::rethrow_exception(failed);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout || !error.rank()) throw;
    throw Error(
        ErrorCode::Timeout,
        fmt::format("while {}, nothing was heard of rank {} for {:.3g} s: is it stopped, or "
                    "does its machine sleep? parallel.timeout_s sets how long to wait",
                    doing, *error.rank(), std::chrono::duration<double>(waited).count()),
        error.rank());
  }
}

}  // namespace

void do_watched(Group group, milliseconds timeout, const std::string& doing,
                const std::function<void()>& work, std::function<void()> call_off) {
  if (group.size() == 1) return work();
  Rounds rounds(std::move(group), timeout, std::move(call_off));
  try {
    work();
  } catch (...) {
    // A rank that was silent ends the group, so that the work fails with it.
    if (const auto failed = rounds.end(gave_up)) throw_of_round(failed, rounds.patience(), doing);
    throw;
  }
  if (const auto failed = rounds.end(through)) throw_of_round(failed, rounds.patience(), doing);
}

}  // namespace bimetal::comm
