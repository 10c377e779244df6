#pragma once
// Rank 0's output: a table that grows with each size, or JSON at the end.
//
// The processor time of this process.

#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/fabric_bench/measure.h"
#include "bimetal/launch/meet.h"

namespace bimetal::fabric_bench {

class Report {
 public:
  Report(const BenchOptions& options, int ranks);

  /// Tells on a terminal's standard error what is being measured.
  void announce(std::size_t bytes, std::size_t number, std::size_t of);

  void add(const Measurement& measurement);

  /// Ends the table, or prints the JSON. Error(System) if nobody takes it.
  void finish();

 private:
  void write(const std::string& text);
  void clear_announcement();

  const BenchOptions& options_;
  const int ranks_;
  const bool announces_;
  std::vector<Measurement> measurements_;
};

/// "256 B", "64 KiB", "1.5 MiB".
std::string size_text(std::size_t bytes);

// The benchmark from its command line to its end: starts local ranks, or is one.

/// How this program finds the other ranks: launch::meet or launch::join_world.
using Join = std::function<comm::Group(const launch::RankEnvironment&, const launch::JoinOptions&)>;

struct BenchProgram {
  /// The words before the options on this program's command line: {"bench"} for `bimetal bench`.
  std::vector<std::string> leading_words;
  Join join;
  std::function<int(ErrorCode)> exit_status;  ///< of a rank that fails
};

/// Runs the benchmark; rank 0 prints. Returns the exit status. Throws Error with the cause where it
/// fails, on a rank only if no launcher listens.
int run_bench(const BenchOptions& options, const BenchProgram& program);

/// The figures of `group`, measured on all of its ranks. Collective.
void bench_in(comm::Group group, const BenchOptions& options);

/// The processor time so far of all threads, user and system: seconds.
double processor_seconds();

// Ranks of the benchmark as processes of this machine, as each system has them.

/// Starts options.ranks processes of this program, and returns when the last has ended. The exit
/// status; throws Error where one fails: with the cause, as it told (POSIX), or Aborted.
int start_ranks(const BenchOptions& options, const BenchProgram& program);

/// Runs `work` as a rank, and returns its exit status. The rank ends with its launcher (on Windows
/// by the launcher's job object). The launcher hears of errors; if none listens they are thrown.
int be_rank(const BenchProgram& program, const std::function<void()>& work);

}  // namespace bimetal::fabric_bench
