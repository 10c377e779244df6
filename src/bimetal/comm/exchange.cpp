#include "bimetal/comm/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"

namespace bimetal::comm {
namespace {

Bytes room_for(std::size_t bytes) try { return Bytes(bytes); } catch (const std::exception&) {
  throw Error(ErrorCode::OutOfMemory,
              fmt::format("there is no memory for {} bytes from other ranks", bytes));
}

Buffer as_buffer(std::span<std::byte> bytes) {
  return {bytes.data(), bytes.size(), DType::uint8};
}

using std::chrono::milliseconds;

/// Messages with it are this file's alone.
constexpr std::uint64_t kTag = 0x11fe;

/// One rank's state in a round, or that of all ranks as rank 0 tells it.
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

  /// Waits for the last round. Returns the error of the rounds, if any.
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

  /// The outcome of a round. A rank that gives up takes no part in later rounds. Without rank 0
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
  std::vector<bool> left_;       ///< on rank 0, by rank: it has given up
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

Group group_of_its_own(Group group) {
  std::vector<int> everyone(static_cast<std::size_t>(group.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return group.subgroup(everyone);
}

std::vector<Bytes> all_gather_bytes(Group group, std::span<const std::byte> mine,
                                    Deadline deadline) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const std::vector<std::int64_t> my_size = {static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> sizes(ranks);
  group.all_gather(buffer(std::span(my_size)), buffer(std::span(sizes)), deadline).wait();
  const auto longest = longest_said(sizes);
  Bytes padded(mine.begin(), mine.end());
  padded.resize(longest);
  Bytes all = room_for(longest * ranks);
  group.all_gather(as_buffer(padded), as_buffer(all), deadline).wait();

  std::vector<Bytes> result;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto bytes =
        std::span(all).subspan(rank * longest, static_cast<std::size_t>(sizes[rank]));
    result.emplace_back(bytes.begin(), bytes.end());
  }
  return result;
}

std::vector<std::string> all_gather_text(Group group, const std::string& mine, Deadline deadline) {
  std::vector<std::string> all;
  for (const auto& bytes :
       all_gather_bytes(std::move(group), std::as_bytes(std::span(mine)), deadline)) {
    all.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

Bytes broadcast_bytes(Group group, Bytes bytes, int root, Deadline deadline) {
  std::vector<std::int64_t> size = {static_cast<std::int64_t>(bytes.size())};
  group.broadcast(buffer(std::span(size)), root, deadline).wait();
  const auto sent = checked_size(size[0], kMostSent, root);
  if (bytes.size() != sent) bytes = room_for(sent);
  group.broadcast(as_buffer(bytes), root, deadline).wait();
  return bytes;
}

std::string broadcast_text(Group group, std::string_view text, int root, Deadline deadline) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto sent = broadcast_bytes(std::move(group), {bytes.begin(), bytes.end()}, root, deadline);
  return {reinterpret_cast<const char*>(sent.data()), sent.size()};
}

std::size_t checked_size(std::int64_t size, std::int64_t most, int rank) {
  if (size >= 0 && size <= most) return static_cast<std::size_t>(size);
  throw Error(ErrorCode::CorruptData,
              fmt::format("rank {} announces {} bytes, of {} at most", rank, size, most), rank);
}

std::size_t longest_said(std::span<const std::int64_t> sizes) {
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    longest = std::max(longest, checked_size(sizes[rank], kMostSaid, static_cast<int>(rank)));
  }
  return longest;
}

namespace {

constexpr char kDone = 'd';
constexpr char kFailed = 'f';  // and the error's code, as a letter

std::string failure_text(const Error& error) {
  return std::string{kFailed, static_cast<char>('a' + static_cast<int>(error.code()))} +
         error.what();
}

Error parse_failure(const std::string& text) {
  const int code = text.size() > 1 ? text[1] - 'a' : -1;
  if (text.empty() || text[0] != kFailed || code < 0 ||
      code > static_cast<int>(ErrorCode::Internal)) {
    return {ErrorCode::CorruptData, "what rank 0 has sent makes no sense", 0};
  }
  return {static_cast<ErrorCode>(code), text.substr(2), 0};
}

/// A rank that fails may end the group next. That must not overtake the message to the others.
void let_all_hear(Group group, Deadline deadline) {
  try {
    group.barrier(deadline).wait();
  } catch (const Error&) {  // the failure at hand is the one to tell
  }
}

}  // namespace

std::string from_rank_0(Group group, const std::function<std::string()>& action,
                        Deadline deadline) {
  std::string text;
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      text = kDone + action();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      text = failure_text(to_error(error));
    }
  }
  text = broadcast_text(group, text, 0, deadline);
  if (!text.empty() && text[0] == kDone) return text.substr(1);
  // Only of what rank 0 knows to be a failure does it wait for the others, too.
  if (!text.empty() && text[0] == kFailed) let_all_hear(std::move(group), deadline);
  if (failure) std::rethrow_exception(failure);
  throw parse_failure(text);
}

void on_rank_0(Group group, const std::function<void()>& action, Deadline deadline) {
  const auto with_no_words = [&] {
    action();
    return std::string();
  };
  from_rank_0(std::move(group), with_no_words, deadline);
}

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
