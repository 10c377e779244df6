#pragma once
// `bimetal launch --slurm` and `--mpi`: a process that another engine has started becomes the rank
// that it is there, by torchrun's variables, and then the command.

#include <string>
#include <vector>

#include "bimetal/cli/command.h"

namespace bimetal::cli {

/// Replaces this process by `command`; does not return unless that fails. Errors: InvalidArgument
/// if srun has not started this process, or for a program that does not exist.
int become_slurm_task(const std::vector<std::string>& command);

/// The same under mpirun. A child process meets the others through MPI and brings back rank 0's
/// address, a port that is free there and a token. Errors: as above; those of net::mpi_world().
int become_mpi_process(const std::vector<std::string>& command);

/// The hidden subcommand that is this child process.
void add_mpi_meeting(CLI::App& app, Action& action);

}  // namespace bimetal::cli
