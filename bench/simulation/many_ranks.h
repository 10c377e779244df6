#pragma once
// A job of many ranks in a simulated world (world.h): Bimetal's own rendezvous, mesh, collectives
// and membership find each other, add up, lose one of them, and go on.

#include <cstddef>
#include <string>
#include <vector>

#include "simulation/world.h"

namespace simulation {

struct JobOptions {
  int ranks = 1000;
  int victim = 1;         ///< the rank that is lost
  bool by_power = false;  ///< its machine is off, in place of a process that is killed
  std::size_t short_bytes = 4096, long_bytes = std::size_t{1} << 20;  ///< of all-reduces
  Links links = {};
};

/// The cost of one part of the job's life.
struct Phase {
  std::string name;
  double seconds = 0;               ///< virtual
  double messages = 0, bytes = 0;   ///< that a rank has sent, on average
  std::uint64_t most_messages = 0;  ///< that one has sent and received, of all but rank 0
  std::uint64_t of_rank_0 = 0;      ///< that rank 0 has
  double connections = 0;           ///< made and taken by a rank, on average
};

/// Throws std::runtime_error where the job does not do what it should.
std::vector<Phase> simulate_job(const JobOptions& options);

}  // namespace simulation
