#pragma once
// The machine on which a job of several machines was started: it serves the store, waits for the
// others, and runs the first ranks.

#include <CLI/CLI.hpp>
#include <string>

#include "bimetal/cli/start/local_ranks.h"
#include "bimetal/launch/local/signal_watch.h"

namespace bimetal::cli {

struct HostOptions {
  std::string listen;      ///< ADDR:PORT; empty: the job is on this machine alone
  int world_size = 0;      ///< workers over all machines
  std::string token_file;  ///< may be empty on loopback
};

/// --listen, --world-size, --token-file and --encrypt. Returns --listen.
CLI::Option* add_host_options(CLI::App& command, HostOptions& options);

/// Error(InvalidArgument) for any of them in a process that another launcher has started as a rank.
void refuse_in_rank(const HostOptions& options);

/// As run_local_job; rank 0 and those after it are this machine's.
int run_host_job(const LocalRanks& ranks, const HostOptions& options, launch::SignalWatch& signals);

}  // namespace bimetal::cli
