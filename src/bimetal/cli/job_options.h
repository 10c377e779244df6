#pragma once
// Options that many subcommands have, and their meaning: the job, its workers, how it connects.

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

/// The job that those options describe. `file` or `deepspeed` may be empty.
struct JobSources {
  const std::string& file;
  const std::string& deepspeed;
  const std::vector<std::string>& set;
};

/// --worker SPEC, repeated. Its help is `what`.
void add_workers(CLI::App& command, std::vector<std::string>& workers, const std::string& what);

/// The workers of the command line, else those of the job, else one that chooses its device.
/// Error(InvalidArgument) for a spec that makes no sense.
std::vector<std::string> choose_workers(const std::vector<std::string>& from_command_line,
                                        const job::JobConfig& job);

/// The same for a machine that may have parameter servers alone: "none" stands for no worker.
std::vector<std::string> choose_workers_or_none(const std::vector<std::string>& from_command_line,
                                                const job::JobConfig& job);

/// How many ranks a job will have; 0 where that is not known.
using RanksOf = std::function<int(const job::JobConfig& job)>;

/// The job of a file, changed by DeepSpeed's file, and then by --set. `ranks_of` is asked only with
/// DeepSpeed's file, about the job without it. Errors and notices as read_job()'s.
job::JobConfig read_job(const JobSources& sources, const RanksOf& ranks_of);

/// That job. Advice to its author is written to standard error. Errors of job::load_job.
job::JobConfig read_job(const std::string& file, const std::vector<std::string>& set);

}  // namespace bimetal::cli
