#pragma once
// What every subcommand that reads a job file is told of it.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"

namespace bimetal::cli {

/// JOB.toml, and --set section.key=value as often as needed.
void add_job_options(CLI::App& command, std::string& job, std::vector<std::string>& set);

/// That job. What its author should change is written to standard error. Errors of job::load_job.
job::JobConfig read_job(const std::string& file, const std::vector<std::string>& set);

}  // namespace bimetal::cli
