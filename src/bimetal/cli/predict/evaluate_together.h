#pragma once
// An evaluation by several workers: each its part of the samples, or of the model.

#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {

struct TogetherArguments {
  std::string checkpoint;
  std::filesystem::path report;  ///< rank 0 writes it; empty: none
};

/// Starts a rank for each of `workers` on this machine, and returns the exit status of all.
int evaluate_together(const TogetherArguments& arguments, job::JobConfig job,
                      const std::vector<std::string>& workers);

/// One rank, whoever has started it. Rank 0 reads the checkpoint and shows the figures.
int evaluate_as_rank(const launch::RankEnvironment& env, job::JobConfig job,
                     const job::WorkerSpec& worker, const TogetherArguments& arguments);

/// The hidden subcommand.
void add_evaluate_rank(CLI::App& app, Action& action);

}  // namespace bimetal::cli
