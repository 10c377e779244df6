#pragma once
// The last calls of this process in all groups of a job, kept for a failure: each call, how far it
// got, when, and the ranks that it waited for. Fields have the names of PyTorch's flight recorder
// (c10d, FlightRecorder.hpp) where it has them. docs/errors.md describes a dump.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/call.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/mailbox/transfers.h"

namespace bimetal::comm {

// One call in flight.

struct Flight {
  Flight(Call c, Deadline d) : call(std::move(c)), deadline(d) {}

  const Call call;
  const Deadline deadline;
  const Deadline::Clock::time_point begun = Deadline::Clock::now();
  const std::shared_ptr<Work::State> work = std::make_shared<Work::State>();
  Transfers transfers;
  std::vector<std::unique_ptr<std::byte[]>> scratch;  ///< of the thread that runs the call
  std::uint64_t record = 0;  ///< in the flight recorder; constant once the call has begun

  // Guarded by the group's lock:
  bool ended = false;
  Timer::Alarm alarm;
  bool probed = false;     ///< other ranks have been told that this one waits
  std::set<int> told;      ///< these: world ranks
  std::set<int> heard_of;  ///< world ranks known to have made this call
  bool gives_way = false;  ///< its time is up; somebody else may know who is to blame
};

/// Thread-safe.
class FlightRecorder {
 public:
  static constexpr std::size_t kEntries = 1000;

  using Id = std::uint64_t;  ///< numbers calls from 1; 0 stands for none

  /// `file`: where write() puts a dump; empty: nowhere. See file_for().
  FlightRecorder(int rank, int size, std::filesystem::path file = {});

  /// A call has been made; `members` is the size of its group.
  Id created(std::uint32_t group, int members, const Call& call, std::chrono::nanoseconds timeout);
  /// A call that was over before it could be told that it had begun: its times are all alike.
  void passed(std::uint32_t group, int members, const Call& call, const char* algorithm);
  void started(Id id);
  /// The way in which the call is carried out. `algorithm` must live for ever.
  void chose(Id id, const char* algorithm);
  /// The ranks (of the world) that the call waits for when its group fails.
  void waits_for(Id id, const std::set<int>& peers);
  /// Done, or ended by `failure`.
  void completed(Id id, const std::optional<Failure>& failure);

  /// Everything kept, as a JSON object.
  std::string json() const;

  /// Writes a dump if there is a file for it; the first call alone does. Trouble is logged.
  void write() noexcept;

  /// Where the process of `rank` writes its dump, from what BIMETAL_FLIGHT_RECORDER or an option
  /// says, in UTF-8: a folder gets flight_rank_R.json; a file DIR/NAME.json becomes
  /// DIR/NAME_rank_R.json. In a later membership epoch the name ends in _epoch_E_rank_R.json.
  static std::filesystem::path file_for(const std::string& place, int rank,
                                        std::uint32_t epoch = 0);

 private:
  struct Entry {
    Id id = 0;
    std::uint32_t group = 0;
    int members = 0;
    Call call;
    std::int64_t timeout_ms = 0;
    std::int64_t created_ns = 0;
    std::int64_t started_ns = 0;  ///< 0: not yet
    std::int64_t completed_ns = 0;
    const char* algorithm = nullptr;
    std::set<int> waits_for;
    std::optional<Failure> failure;

    std::string json() const;
  };

  Entry* find(Id id);

  const int rank_;
  const int size_;
  const std::filesystem::path file_;
  mutable std::mutex mutex_;
  Id last_id_ = 0;
  std::vector<Entry> ring_;  ///< entry `id` is at id % kEntries
  std::mutex write_mutex_;
  bool written_ = false;
};

}  // namespace bimetal::comm
