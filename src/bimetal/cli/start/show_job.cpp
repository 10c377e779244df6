#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "bimetal/cli/command.h"
#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/job/job_config.h"

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
