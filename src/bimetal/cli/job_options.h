#pragma once
// What every subcommand that reads a job file is told of it.

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"

namespace bimetal::cli {

/// JOB.toml, and --set section.key=value as often as needed.
void add_job_options(CLI::App& command, std::string& job, std::vector<std::string>& set);

/// --deepspeed FILE, beside which JOB.toml may be left out. After add_job_options().
void add_deepspeed_option(CLI::App& command, std::string& deepspeed);

/// What those options say. `file` or `deepspeed` may be empty.
struct JobSources {
  const std::string& file;
  const std::string& deepspeed;
  const std::vector<std::string>& set;
};

/// How many ranks a job will have; 0 where that is not known.
using RanksOf = std::function<int(const job::JobConfig& job)>;

/// The job of a file, changed by DeepSpeed's, and that by --set. `ranks_of` is asked only with
/// DeepSpeed's file, of the job without it. Errors and notices as read_job()'s.
job::JobConfig read_job(const JobSources& sources, const RanksOf& ranks_of);

/// That job. What its author should change is written to standard error. Errors of job::load_job.
job::JobConfig read_job(const std::string& file, const std::vector<std::string>& set);

}  // namespace bimetal::cli
