#pragma once
// A text that several workers write together, each with its part of the model.

#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/cli/predict/generate_arguments.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {

/// Starts a rank for each of `workers` on this machine, and returns the exit status of all. `job`:
/// of its mesh, which mesh_of_text() makes definite, its time limits and its transport.
int generate_in_parts(const GenerateArguments& arguments, job::JobConfig job,
                      const std::vector<std::string>& workers);

/// One rank, whoever has started it. Rank 0 reads RUN and writes the text.
int generate_as_rank(const launch::RankEnvironment& env, job::JobConfig job,
                     const job::WorkerSpec& worker, const GenerateArguments& arguments);

/// The hidden subcommand.
void add_generate_rank(CLI::App& app, Action& action);

}  // namespace bimetal::cli
