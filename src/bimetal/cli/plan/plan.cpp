#include "bimetal/cli/plan/plan.h"

#include <fmt/format.h>

#include <asio/ip/host_name.hpp>
#include <memory>
#include <utility>

#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/plan/plan_memory_output.h"
#include "bimetal/cli/plan/plan_mesh_output.h"
#include "bimetal/cli/plan/plan_output.h"
#include "bimetal/cli/progress.h"
#include "bimetal/cli/status_line.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/train/local_job.h"
#include "bimetal/cli/train/rank_process.h"
#include "bimetal/job/combinations.h"
#include "bimetal/launch/fetch_url.h"
#include "bimetal/train/measure/measure_plan.h"

namespace bimetal::cli {
namespace {

constexpr const char* kRankCommand = "plan-rank";

constexpr const char* kPlanExamples = R"(Examples:
  bimetal plan examples/fashion_mnist.toml --worker cuda:0 --worker cpu
  bimetal plan job.toml --details
  bimetal plan job.toml --set train.global_batch=4096 --json
  bimetal plan job.toml --worker cpu:memory=5GiB --worker cpu:memory=9GiB --timeline step.svg
  bimetal plan --simulate examples/clusters/home.toml
  torchrun --no-python --nnodes 2 … bimetal plan job.toml      (on both machines)

Takes some seconds and trains nothing. How the figures are measured: docs/planning.md.)";

class PhaseLine final : public progress::Observer {
 public:
  void on_phase(const std::string& what) override { status_.show(what + " …"); }
  void on_data(const progress::DataProgress& progress) override {
    status_.show(data_line(progress));
  }

 private:
  StatusLine status_;
};

train::MeasuredPlan measure(const launch::RankEnvironment& env, const job::JobConfig& job,
                            const job::WorkerSpec& worker, progress::Observer& observer,
                            bool for_these) {
  train::TrainerOptions options;
  options.worker = worker;
  options.local_rank = env.local_rank;
  options.local_world_size = env.local_world_size;
  options.host_name = asio::ip::host_name();
  options.fetch = launch::fetch_url;
  const auto group = join_group(env, job);
  return in_company(group,
                    [&] { return train::measure_plan(job, group, options, observer, for_these); });
}

struct PlanOutput {
  bool json = false, details = false;
  std::string simulate, timeline;
};

void show(const train::MeasuredPlan& plan, const PlanOutput& output) {
  if (!output.simulate.empty()) {
    if (!plan.cluster) {
      throw Error(ErrorCode::OutOfMemory,
                  "the model's units could not be measured on this machine");
    }
    return simulate_cluster({output.simulate, output.timeline, output.json, output.details},
                            &plan.mesh_input,
                            1e-3 * plan.devices.front().matmul_float32_gflops);
  }
  if (!output.timeline.empty() && plan.cluster) {
    write_timeline(plan.mesh_input, *plan.cluster, plan.mesh, output.timeline);
  }
  if (output.json) {
    fmt::print("{}\n", plan_json(plan).dump(2));
    return;
  }
  Terminal terminal;
  print_plan(terminal, plan, output.details);
}

int run_plan_rank(const launch::RankEnvironment& env, const job::JobConfig& job,
                  const job::WorkerSpec& worker, const PlanOutput& output) {
  return run_rank_process([&](launch::StatusReporter&) {
    // Else what is measured here stands for other devices, of which its mesh may well be.
    const bool for_these = output.simulate.empty();
    if (env.rank != 0) {
      progress::Observer silent;
      measure(env, job, worker, silent, for_these);
      return kSuccess;
    }
    auto phases = std::make_unique<PhaseLine>();
    const auto plan = measure(env, job, worker, *phases, for_these);
    phases.reset();  // takes its line away
    show(plan, output);
    return kSuccess;
  });
}

}  // namespace

int plan_command(const PlanArguments& arguments) {
  const PlanOutput output{arguments.json, arguments.details, arguments.simulate,
                          arguments.timeline};
  if (arguments.job.empty() && arguments.deepspeed.empty()) {
    simulate_cluster({output.simulate, output.timeline, output.json, output.details}, nullptr, 0);
    return kSuccess;
  }
  const auto job = read_job(
      {arguments.job, arguments.deepspeed, arguments.set}, [&](const job::JobConfig& so_far) {
        if (const auto env = launch::rank_from_environment()) {
          return env->world_size;
        }
        return static_cast<int>(choose_workers(arguments.workers, so_far).size());
      });
  job::require_possible(job, {});
  if (const auto env = launch::rank_from_environment()) {
    return run_plan_rank(*env, job, worker_of_rank(*env, arguments.workers, job), output);
  }
  LocalRanks ranks;
  ranks.job = job;
  ranks.workers = choose_workers(arguments.workers, job);
  ranks.rank_command = {kRankCommand};
  if (output.json) ranks.rank_command.push_back("--json");
  if (output.details) ranks.rank_command.push_back("--details");
  for (const auto& [option, file] :
       {std::pair("--simulate", output.simulate), std::pair("--timeline", output.timeline)}) {
    if (!file.empty()) ranks.rank_command.insert(ranks.rank_command.end(), {option, file});
  }
  launch::SignalWatch signals;
  return run_local_job(ranks, signals, [] {});  // nothing to save: the ranks just end
}

void add_plan(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<PlanArguments>();
  auto* command = app.add_subcommand(
      "plan", "Measure, and tell which workers are worth using for a job, and how");
  add_job_options(*command, arguments->job, arguments->set);
  add_deepspeed_option(*command, arguments->deepspeed);
  command
      ->add_option("--worker", arguments->workers,
                   "A worker of this machine: cpu, cpu:threads=1, cuda:0, mps; may be repeated "
                   "(default: the job's, else one on the best device)")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command->add_flag("--json", arguments->json, "Print JSON instead of text");
  command->add_flag("--details", arguments->details,
                    "Print tables, too: what was measured, and all that was compared");
  auto* job = command->get_option("job");
  command
      ->add_option("--simulate", arguments->simulate,
                   "Plan for the cluster that this file describes (docs/planning.md); where it has "
                   "a [model], the job file may be left out")
      ->type_name("CLUSTER.toml")
      ->each([job](const std::string&) { job->required(false); });
  command
      ->add_option("--timeline", arguments->timeline, "Draw a step of the best mesh into this file")
      ->type_name("FILE.svg");
  command->footer(kPlanExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return plan_command(*arguments); }; });
}

void add_plan_rank(CLI::App& app, Action& action) {
  struct Options {
    std::string worker = "auto";
    PlanOutput output;
  };
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand(kRankCommand, "One rank of a plan; started by plan");
  command->group("");  // not for people: left out of --help
  command->add_option("--worker", options->worker);
  command->add_flag("--json", options->output.json);
  command->add_flag("--details", options->output.details);
  command->add_option("--simulate", options->output.simulate);
  command->add_option("--timeline", options->output.timeline);
  command->callback([options, &action] {
    action = [options] {
      const auto [env, job] = launched_rank();
      return run_plan_rank(env, job, job::parse_worker_spec(options->worker), options->output);
    };
  });
}

}  // namespace bimetal::cli
