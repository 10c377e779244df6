#pragma once
// What every subcommand that reads a job file is told of it.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace bimetal::cli {

/// JOB.toml, and --set section.key=value as often as needed.
void add_job_options(CLI::App& command, std::string& job, std::vector<std::string>& set);

}  // namespace bimetal::cli
