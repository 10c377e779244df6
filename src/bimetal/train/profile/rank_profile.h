#pragma once
// One rank's share of a profile, as it travels to rank 0.

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/comm/group.h"
#include "bimetal/train/profile/operations.h"
#include "bimetal/train/profile/profile.h"

namespace bimetal::train {

// The differences between the clocks of a group's ranks, measured by messages.

struct ClockOffset {
  std::int64_t ns = 0;        ///< the rank's clock less rank 0's
  std::int64_t error_ns = 0;  ///< the true one is no further away: half of the message's round trip
};

/// Nanoseconds since 1970 by this machine's clock.
std::int64_t wall_clock_ns();

/// By rank, the same on all of them; rank 0's is 0. Rank 0 asks each rank for the time, again and
/// again, and believes the quickest answer (Cristian, "Probabilistic clock synchronization",
/// Distributed Computing 3, 1989). Collective. Errors: the fabric's.
std::vector<ClockOffset> clock_offsets(comm::Group group, Deadline deadline,
                                       const std::function<std::int64_t()>& now = wall_clock_ns);

// A rank's part of a trace in the format of Chrome (the Trace Event Format), which Perfetto reads,
// too.

/// A call of the fabric, from its turn to its end.
struct FabricCall {
  std::string name;         ///< "all_reduce"
  std::string detail = {};  ///< "1024 float32, ring"
  std::int64_t begin_ns = 0, end_ns = 0;
};

/// Reads the calls that are over out of what comm::Group::flight_recorder() gives, each once.
class FabricCalls {
 public:
  /// Those that have ended since the last time, in the order of their begin.
  std::vector<FabricCall> take(const std::string& flight_recorder);

 private:
  std::int64_t next_ = 0;         ///< records before it have been taken
  std::set<std::int64_t> taken_;  ///< and these behind it: calls end in another order
};

struct RankTrace {
  int rank = 0;
  std::string place = {};           ///< "host, cpu"
  std::int64_t clock_ahead_ns = 0;  ///< of rank 0's: taken off all times
  std::int64_t start_ns = 0;        ///< what becomes 0, by rank 0's clock
  std::int64_t last_step_ns = 0;    ///< the begin of the last step, likewise
  std::vector<ProfiledEvent> events = {};
  std::vector<FabricCall> calls = {};
};

/// Its events, with commas between them, for write_trace().
std::string trace_events(const RankTrace& rank);

/// The whole file, from the ranks' events.
std::string trace_file(const std::vector<std::string>& events_of_ranks);

/// In the order in which a step goes through them; "other" is what no mark covers, and the exchange
/// runs beside them all.
inline constexpr std::array<const char*, 8> kPhases = {"data", "forward", "backward", "bubble",
                                                       "wait", "update",  "other",    "exchange"};

struct RankProfile {
  static constexpr std::size_t kMostSpans = 400;

  double seconds = 0;  ///< of its steps
  std::array<double, kPhases.size()> phases{};
  std::vector<Operation> operations = {};
  std::string trace = {};                      ///< trace_events()
  std::vector<progress::StepSpan> spans = {};  ///< the last step's phases, in order
};

/// A summary of a rank's events in steps of `seconds` altogether.
RankProfile summarize(const RankTrace& rank, double seconds);

comm::Bytes encode(RankProfile profile);
/// Error(CorruptData) for anything else than encode() gives.
RankProfile decode(std::span<const std::byte> bytes);

/// Adds a rank's figures to the profile's; its operations are in no order.
void add_to(Profile& profile, const RankProfile& rank);

}  // namespace bimetal::train
