#include "bimetal/cli/job_options.h"

#include <fmt/format.h>

#include <cstdio>

#include "bimetal/job/deepspeed.h"

namespace bimetal::cli {
namespace {

void show_notice(const std::string& notice) {
  fmt::print(stderr, "note: {}\n", notice);
}

}  // namespace

void add_job_options(CLI::App& command, std::string& job, std::vector<std::string>& set) {
  command.add_option("job", job, "The job file (TOML; docs/job_file.md)")
      ->required()
      ->type_name("JOB.toml");
  command.add_option("--set", set, "Change a key of the job; may be repeated")
      ->type_name("section.key=value")
      ->allow_extra_args(false);
}

void add_deepspeed_option(CLI::App& command, std::string& deepspeed) {
  auto* job = command.get_option("job");
  command
      .add_option("--deepspeed", deepspeed,
                  "Batch sizes, optimizer, precision and so on are DeepSpeed's (ds_config.json; "
                  "docs/deepspeed.md), before --set; the job file may then be left out")
      ->type_name("FILE.json")
      ->each([job](const std::string&) { job->required(false); });
}

job::JobConfig read_job(const std::string& file, const std::vector<std::string>& set) {
  return job::load_job(file, set, show_notice);
}

job::JobConfig read_job(const JobSources& sources, const RanksOf& ranks_of) {
  if (sources.deepspeed.empty()) return read_job(sources.file, sources.set);
  auto job = sources.file.empty() ? job::JobConfig() : read_job(sources.file, {});
  // Where the job runs decides on how many ranks it has.
  const auto placed = sources.file.empty() ? job::parse_job("", "--set", sources.set)
                                           : job::load_job(sources.file, sources.set);
  job::apply_deepspeed(sources.deepspeed, ranks_of(placed), job, show_notice);
  job::apply_overrides(job, sources.set, show_notice);
  // Left out, it goes by whether the mesh is open by the file and --set together.
  job.mesh.schedule = placed.mesh.schedule;
  return job;
}

}  // namespace bimetal::cli
