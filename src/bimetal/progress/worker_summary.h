#pragma once
// What each rank tells all others at a run's end, so that every rank holds the whole report.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"

namespace bimetal::progress {

struct WorkerSummary {
  std::string host;
  std::string device;
  double elapsed_seconds = 0;
  double communicate_seconds = 0;
  double wait_seconds = 0;
  std::uint64_t bytes_sent = 0;
};

/// One entry per rank. Collective.
std::vector<WorkerSummary> gather_summaries(comm::Group group, const WorkerSummary& mine,
                                            std::chrono::milliseconds timeout);

}  // namespace bimetal::progress
