#pragma once
// The benchmark from its command line to its end: starts local ranks, or is one.

#include <functional>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/fabric_bench/bench_options.h"
#include "bimetal/launch/meet.h"

namespace bimetal::fabric_bench {

/// How this program finds the other ranks: launch::meet or launch::join_world.
using Join = std::function<comm::Group(const launch::RankEnvironment&, const launch::JoinOptions&)>;

struct BenchProgram {
  /// What stands before the options on this program's command line: {"bench"} for `bimetal bench`.
  std::vector<std::string> leading_words;
  Join join;
  std::function<int(ErrorCode)> exit_status;  ///< of a rank that fails
};

/// Runs the benchmark; rank 0 prints. Returns the exit status. Throws Error with the cause where it
/// fails, on a rank only if no launcher listens.
int run_bench(const BenchOptions& options, const BenchProgram& program);

/// The figures of `group`, measured on all of its ranks. Collective.
void bench_in(comm::Group group, const BenchOptions& options);

}  // namespace bimetal::fabric_bench
