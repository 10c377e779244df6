#pragma once
// How `bimetal launch` treats the program that has started it. Tasks of srun and processes of
// mpirun become the ranks that they are there, by torchrun's variables, and then the command
// (POSIX). On Windows it is Python's command `bimetal`, and ends with it.
//
// The part of a launch that is the same however its ranks meet.

#include <optional>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/launch/ssh/host_launcher.h"

namespace bimetal::cli {

struct Starter {
  bool slurm = false, mpi = false;
  int front = 0;  ///< number of the process to end with; 0: none
};

/// Adds --slurm and --mpi, each instead of the `places`; on Windows --front.
void add_starter_options(CLI::App& command, Starter& starter,
                         const std::vector<CLI::Option*>& places);

/// Under srun or mpirun replaces this process by `command`, and does not return unless that fails;
/// with --elastic `command` is its child, and the exit status the child's; else nothing. Errors:
/// InvalidArgument if the one that is named has not started this process, or for a program that
/// does not exist; those of net::mpi_world(). Under mpirun a child process meets the others through
/// MPI and brings back rank 0's address, a port that is free there and a token.
std::optional<int> follow_starter(const Starter& starter, const std::vector<std::string>& command);

/// The hidden subcommand that is this child process, where there is one.
void add_mpi_meeting(CLI::App& app, Action& action);

/// In this folder, with this process's settings of Bimetal; without hosts, token and command.
launch::HostsPlan plan_from_here();

/// Runs the ranks of a plan that knows its hosts, tells the user how they have ended, and returns
/// the exit status.
int run_and_tell(const launch::HostsPlan& plan, launch::SignalWatch& signals);

}  // namespace bimetal::cli
