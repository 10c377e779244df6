#include "bimetal/cli/job_options.h"

#include <fmt/format.h>

#include <cstdio>

namespace bimetal::cli {

void add_job_options(CLI::App& command, std::string& job, std::vector<std::string>& set) {
  command.add_option("job", job, "The job file (TOML; docs/job_file.md)")
      ->required()
      ->type_name("JOB.toml");
  command.add_option("--set", set, "Change a key of the job; may be repeated")
      ->type_name("section.key=value")
      ->allow_extra_args(false);
}

job::JobConfig read_job(const std::string& file, const std::vector<std::string>& set) {
  return job::load_job(file, set,
                       [](const std::string& notice) { fmt::print(stderr, "note: {}\n", notice); });
}

}  // namespace bimetal::cli
