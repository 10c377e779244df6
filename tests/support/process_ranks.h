#pragma once
// N ranks as processes of their own, over TCP on the loopback interface, for tests that kill and
// stop them. POSIX.

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"

namespace bimetal::testing {

/// How a rank's body ended: without an error, or with the one it threw.
struct RankOutcome {
  std::optional<ErrorCode> error;
  std::optional<int> blamed;
  std::string message;
};

/// Forks the ranks; to be made while the process has one thread. Ranks that still run when it is
/// destroyed are killed.
class ProcessRanks {
 public:
  /// A rank's work. `tell` sends a line to the test: see expect().
  using Body = std::function<void(int rank, comm::Group group,
                                  const std::function<void(const std::string&)>& tell)>;

  ProcessRanks(int n, const Body& body, const comm::GroupOptions& options = {});
  /// One rank for each of `options`.
  ProcessRanks(const Body& body, const std::vector<comm::GroupOptions>& options);
  ~ProcessRanks();
  ProcessRanks(const ProcessRanks&) = delete;
  ProcessRanks& operator=(const ProcessRanks&) = delete;

  /// Waits until `rank` has told `line`; throws Error(Timeout) or, if it ended before, Internal.
  void expect(int rank, const std::string& line, Deadline deadline);

  /// Sends a signal to a rank's process.
  void signal(int rank, int number);

  /// Waits for a rank's end. Throws Error(Timeout) or, if it was killed, Error(PeerLost).
  RankOutcome outcome(int rank, Deadline deadline);

 private:
  struct Child {
    pid_t pid = -1;
    int pipe = -1;  // what it tells
    std::string unread;
  };

  std::optional<std::string> read_line(Child& child, Deadline deadline);

  std::vector<Child> children_;
};

}  // namespace bimetal::testing
