#include "bimetal/cli/job_options.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstdio>

#include "bimetal/job/deepspeed.h"
#include "bimetal/job/worker_spec.h"

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

void add_workers(CLI::App& command, std::vector<std::string>& workers, const std::string& what) {
  command.add_option("--worker", workers, what)->type_name("SPEC")->allow_extra_args(false);
}

std::vector<std::string> choose_workers(const std::vector<std::string>& from_command_line,
                                        const job::JobConfig& job) {
  auto workers = !from_command_line.empty() ? from_command_line : job.cluster.workers;
  if (workers.empty()) workers = {"auto"};
  for (auto& worker : workers) worker = job::to_string(job::parse_worker_spec(worker));
  return workers;
}

std::vector<std::string> choose_workers_or_none(const std::vector<std::string>& from_command_line,
                                                const job::JobConfig& job) {
  const bool none = from_command_line == std::vector<std::string>{"none"};
  return none ? std::vector<std::string>() : choose_workers(from_command_line, job);
}

void add_encrypt(CLI::App& command, const std::string& group) {
  command
      .add_flag_callback(
          "--encrypt", [] { ::setenv("BIMETAL_ENCRYPTION", "on", 1); },
          "Encrypt all connections of the job; the same on every machine")
      ->group(group);
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
