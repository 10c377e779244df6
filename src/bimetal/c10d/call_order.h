#pragma once
// The one order of a group's calls, the same on all ranks, also where futures' callbacks make some
// of them.
//
// Where a callback runs is a matter of chance: inside then() if the call is over by then, else
// later, on another thread, while the program has gone on to other calls. So its calls get the
// places that they have in the first case: behind those made before the future was asked for,
// before those made afterwards. The latter are held back until the callbacks have ended. (A
// backend whose futures are always done, as those of GPU streams are, has the same order.)
//
// Callbacks that block for long, as one does that waits for a later callback, let the next call
// pass, once all ranks have found the same: ReleaseVote.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/c10d/monitored_barrier.h"

namespace bimetal::c10d {

/// Thread-safe. Calls begin one at a time; they must not come back to it.
class CallOrder {
 public:
  /// How long calls are held back without any having begun before the ranks vote.
  static constexpr std::chrono::milliseconds kPatience{250};

  struct Call {
    std::function<void()> begin;
    /// Takes what begin() throws where nobody waits for it any more, and the timeout of a call that
    /// was never begun.
    std::function<void(const std::exception_ptr&)> fail;
    Deadline deadline;
  };

  class Section;
  using SectionPtr = std::shared_ptr<Section>;

  /// `on_timeout` gets the error of a held call whose deadline has gone by: the ranks can't agree
  /// any more.
  CallOrder(std::unique_ptr<ReleaseVote> vote, std::function<void(const Error&)> on_timeout);
  /// Held calls fail.
  ~CallOrder();
  CallOrder(const CallOrder&) = delete;
  CallOrder& operator=(const CallOrder&) = delete;

  /// Begins `call` at once where nothing comes before it, and throws what it throws; else when its
  /// turn has come, on another thread.
  void make(Call call);

  /// The place for the calls of a future's callbacks: here. Calls made later by this thread wait
  /// until it is closed.
  SectionPtr open();
  /// May begin calls in this thread.
  void close(const SectionPtr& section);

  /// While it lives, this thread's calls belong to the section.
  class Inside {
   public:
    explicit Inside(SectionPtr section);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    SectionPtr before_;
  };

  /// The group is over: calls begin at once from now on, held ones soon, and all find that out.
  void give_up();

  /// False if calls are still held, or about to begin, at `deadline`.
  bool wait_until_none_is_held(Deadline deadline);

 private:
  struct Item {
    std::optional<Call> call;  // none: a section
    bool is_call() const { return call.has_value(); }
  };
  using Items = std::list<Item>;

  Items::iterator here();
  bool voting() const { return voted_ && !decided_; }
  void note_begun();
  Call take(Items::iterator item);
  void settle();
  std::optional<Call> next();
  void begin_what_can();
  void watch();
  void fail_overdue();
  void vote();

  const std::unique_ptr<ReleaseVote> vote_;
  const std::function<void(const Error&)> on_timeout_;
  // Held while a call begins, which may take Python's lock: before mutex_, and not by whoever
  // holds that lock. (torch calls getFuture(), and so open(), with it.)
  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Items items_;
  std::size_t held_ = 0;
  std::uint64_t begun_ = 0;  // calls, ever: the next one's number
  std::chrono::steady_clock::time_point moved_;
  bool voted_ = false;  // about the next call
  bool decided_ = false;
  Items::iterator passing_;  // what goes next if the outcome is `go`
  bool over_ = false;
  bool ended_ = false;
  bool asleep_ = false;
  std::thread watcher_;  // from the first held call on
};

}  // namespace bimetal::c10d
