#pragma once
// A rank's part of a trace in the format of Chrome (the Trace Event Format), which Perfetto reads,
// too.

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "bimetal/train/profile/operations.h"

namespace bimetal::train {

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
  std::vector<ProfiledEvent> events = {};
  std::vector<FabricCall> calls = {};
};

/// Its events, with commas between them, for write_trace().
std::string trace_events(const RankTrace& rank);

/// The whole file, of the ranks' events.
std::string trace_file(const std::vector<std::string>& events_of_ranks);

}  // namespace bimetal::train
