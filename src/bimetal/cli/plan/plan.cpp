#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/plan/plan_output.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/start/host_meeting.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::cli {
namespace {

constexpr const char* kPlanExamples = R"(Examples:
  bimetal plan examples/fashion_mnist.toml --worker cuda:0 --worker cpu
  bimetal plan job.toml --details
  bimetal plan job.toml --set train.global_batch=4096 --json
  bimetal plan job.toml --worker cpu:memory=5GiB --worker cpu:memory=9GiB --timeline step.svg
  bimetal plan --simulate examples/clusters/home.toml
  bimetal plan job.toml --listen 192.168.1.5:29400 --world-size 2 --token-file token
                                       (and bimetal join on the other machine, as for train)

Takes some seconds and trains nothing. How the figures are measured: docs/planning.md.)";

struct PlanArguments {
  std::string job, deepspeed;
  std::vector<std::string> set;      ///< "section.key=value"
  std::vector<std::string> workers;  ///< worker specs
  HostOptions host;
  RankRequest request{.work = Work::plan};
  RunRank run_rank;
};

int plan_command(const PlanArguments& arguments) {
  if (arguments.job.empty() && arguments.deepspeed.empty()) {
    simulate_cluster(arguments.request.plan, nullptr, 0);
    return kSuccess;
  }
  const auto env = launch::rank_from_environment();
  if (env && !arguments.run_rank) return become_whole_program();
  LocalRanks ranks{arguments.request};
  auto& request = ranks.request;
  request.job = read_job(
      {arguments.job, arguments.deepspeed, arguments.set}, [&](const job::JobConfig& so_far) {
        if (env) return env->world_size;
        const auto here = static_cast<int>(choose_workers(arguments.workers, so_far).size());
        return arguments.host.expects_others() ? arguments.host.all_workers(here) : here;
      });
  job::require_possible(request.job, {});
  if (env) {
    refuse_in_rank(arguments.host);
    request.worker = worker_of_rank(*env, arguments.workers, request.job);
    return arguments.run_rank(*env, request);
  }
  ranks.workers = choose_workers(arguments.workers, request.job);
  launch::SignalWatch signals;
  if (arguments.host.expects_others()) return run_host_job(ranks, arguments.host, signals);
  refuse_without_others(arguments.host);
  if (!arguments.host.token_file.empty()) {
    throw Error(ErrorCode::InvalidArgument, "--token-file goes with --listen");
  }
  return run_local_job(ranks, signals);
}

}  // namespace

void add_plan(CLI::App& app, Action& action, RunRank run_rank) {
  auto arguments = std::make_shared<PlanArguments>();
  arguments->run_rank = std::move(run_rank);
  auto* command = app.add_subcommand(
      "plan", "Measure, and tell which workers are worth using for a job, and how");
  add_job_options(*command, arguments->job, arguments->set);
  add_deepspeed_option(*command, arguments->deepspeed);
  add_workers(*command, arguments->workers,
              "A worker of this machine: cpu, cpu:threads=1, cuda:0, mps; may be repeated "
              "(default: the job's, else one on the best device)");
  auto& output = arguments->request.plan;
  command->add_flag("--json", output.json, "Print JSON instead of text");
  command->add_flag("--details", output.details,
                    "Print tables, too: what was measured, and all that was compared");
  auto* job = command->get_option("job");
  command
      ->add_option("--simulate", output.simulate,
                   "Plan for the cluster that this file describes (docs/planning.md); where it has "
                   "a [model], the job file may be left out")
      ->type_name("CLUSTER.toml")
      ->each([job](const std::string&) { job->required(false); });
  command->add_option("--timeline", output.timeline, "Draw a step of the best mesh into this file")
      ->type_name("FILE.svg");
  add_host_options(*command, arguments->host);
  command->footer(kPlanExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return plan_command(*arguments); }; });
}

}  // namespace bimetal::cli
