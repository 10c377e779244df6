#include "bimetal/cli/job_options.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/job/deepspeed.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"

namespace bimetal::cli {
namespace {

constexpr const char* kJobExamples = R"(Examples:
  bimetal job examples/fashion_mnist.toml
  bimetal job job.toml --set train.epochs=3 --json
  bimetal job --deepspeed ds_config.json

A key or value that is wrong is an error, as for train. All keys: docs/job_file.md.)";

struct JobArguments {
  std::string job, deepspeed;
  std::vector<std::string> set;
  bool json = false;
};

int show_job(const JobArguments& arguments) {
  const auto job = read_job(
      {arguments.job, arguments.deepspeed, arguments.set},
      [](const job::JobConfig& so_far) { return static_cast<int>(so_far.cluster.workers.size()); });
  fmt::print("{}", arguments.json ? job::to_json(job) + "\n" : job::to_toml(job));
  return kSuccess;
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

job::JobConfig read_job(const std::string& file, const std::vector<std::string>& set) {
  return job::load_job(file, set);
}

job::JobConfig read_job(const JobSources& sources, const RanksOf& ranks_of) {
  if (sources.deepspeed.empty()) return read_job(sources.file, sources.set);
  auto job = sources.file.empty() ? job::JobConfig() : read_job(sources.file, {});
  // The place where the job runs decides how many ranks it has.
  const auto placed = sources.file.empty() ? job::parse_job("", "--set", sources.set)
                                           : job::load_job(sources.file, sources.set);
  job::apply_deepspeed(sources.deepspeed, ranks_of(placed), job,
                       [](const std::string& notice) { fmt::print(stderr, "note: {}\n", notice); });
  job::apply_overrides(job, sources.set);
  // Left out, it goes by whether the mesh is open by the file and --set together.
  job.mesh.schedule = placed.mesh.schedule;
  return job;
}

void add_show_job(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<JobArguments>();
  auto* command = app.add_subcommand("job", "Check a job file and print it with every key");
  add_job_options(*command, arguments->job, arguments->set);
  add_deepspeed_option(*command, arguments->deepspeed);
  command->add_flag("--json", arguments->json, "Print JSON instead of TOML");
  command->footer(kJobExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return show_job(*arguments); }; });
}

}  // namespace bimetal::cli
