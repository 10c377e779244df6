#pragma once
// The machine on which a job of several machines was started: it serves the store, waits for the
// others, and runs the first ranks.

#include <string>

#include "bimetal/cli/train/local_ranks.h"

namespace bimetal::cli {

struct HostOptions {
  std::string listen;      ///< ADDR:PORT
  int world_size = 0;      ///< workers over all machines
  std::string token_file;  ///< may be empty on loopback
};

/// As run_local_job; rank 0 and those after it are this machine's.
int run_host_job(const LocalRanks& ranks, const HostOptions& options, launch::SignalWatch& signals);

}  // namespace bimetal::cli
