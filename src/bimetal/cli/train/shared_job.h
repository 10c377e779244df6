#pragma once
// What the host and those who join a job of several machines have in common.

#include <CLI/CLI.hpp>
#include <string>

#include "bimetal/launch/job_board.h"
#include "bimetal/launch/local/local_launcher.h"

namespace bimetal::cli {

/// The flag --encrypt: sets BIMETAL_ENCRYPTION for this process and the ranks that it starts.
void add_encrypt(CLI::App& command, const std::string& group);

/// This machine's name, for messages on the others.
std::string own_host_name();

/// Runs this machine's ranks. If the job fails, every machine's terminal tells the same cause: the
/// machine where it happened writes it to the board, the others read it there. Exit status, or
/// throws Error, as run_local_job.
int run_shared_job(const launch::LaunchPlan& plan, launch::JobBoard& board,
                   launch::SignalWatch& signals);

}  // namespace bimetal::cli
