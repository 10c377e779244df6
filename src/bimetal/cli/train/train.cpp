#include "bimetal/cli/train/train.h"

#include <fmt/format.h>

#include <memory>

#include "bimetal/base/error.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/token_file.h"
#include "bimetal/cli/train/host.h"
#include "bimetal/cli/train/local_job.h"
#include "bimetal/cli/train/local_ranks.h"
#include "bimetal/cli/train/profile_output.h"
#include "bimetal/cli/train/rank.h"
#include "bimetal/cli/train/rank_process.h"
#include "bimetal/cli/train/shared_job.h"
#include "bimetal/job/combinations.h"
#include "bimetal/job/job_config.h"
#include "bimetal/launch/find_rank.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::cli {
namespace {

constexpr const char* kTrainExamples = R"(Examples:
  bimetal train examples/fashion_mnist.toml
  bimetal train job.toml --worker cpu:threads=1 --worker cpu:threads=1,speed=0.25
  bimetal train job.toml --set train.epochs=3 --set train.learning_rate=0.1 --report run.json
  bimetal train job.toml --resume runs/fashion
  bimetal train job.toml --profile 10:20
  bimetal train job.toml --deepspeed ds_config.json
  bimetal train job.toml --monitor 127.0.0.1:9100 --tensorboard runs/scalars
  torchrun --no-python --nproc-per-node 2 bimetal train job.toml
  mpirun -n 4 bimetal train job.toml
  srun -n 4 bimetal train job.toml
  bimetal launch -H pc1:2,pc2:2 -- bimetal train job.toml
  bimetal train job.toml --listen 192.168.1.5:29400 --world-size 2 --token-file token

Exit status: 0 trained, 130 interrupted (with a checkpoint, if the job has them), others: docs/errors.md.)";

/// Whoever only starts ranks needs no Python. Before MPI is asked, which the other program will do.
void enter_python_as_rank(const job::JobConfig& job) {
  if (launch::looks_like_rank()) enter_python_for(job);
}

/// Over all machines; 0 if that is not known.
int ranks_of(const TrainArguments& arguments, const job::JobConfig& job) {
  if (const auto env = find_rank(job)) return env->world_size;
  if (!arguments.listen.empty()) return arguments.world_size;
  return static_cast<int>(choose_workers_or_none(arguments.workers, job).size());
}

job::JobConfig load(const TrainArguments& arguments) {
  auto job = read_job({arguments.job, arguments.deepspeed, arguments.set},
                      [&](const job::JobConfig& so_far) {
                        enter_python_as_rank(so_far);
                        return ranks_of(arguments, so_far);
                      });
  job::require_possible(job, {});
  enter_python_as_rank(job);
  if (arguments.join_timeout_s) job.cluster.join_timeout_s = *arguments.join_timeout_s;
  if (!arguments.monitor.empty()) {
    job.monitor.listen = net::to_string(net::parse_endpoint(arguments.monitor));
  }
  if (!arguments.tensorboard.empty()) job.monitor.tensorboard_dir = arguments.tensorboard;
  return job;
}

/// The token of a job on this machine, if it is to be one that others have, too. Asked for before
/// anything starts.
net::Token token_for_monitor(const TrainArguments& arguments, const job::JobConfig& job) {
  if (job.monitor.listen.empty()) {
    if (arguments.listen.empty() && !arguments.token_file.empty()) {
      throw Error(ErrorCode::InvalidArgument, "--token-file goes with --listen or --monitor");
    }
    return {};
  }
  const auto listen = net::parse_endpoint(job.monitor.listen);
  if (net::is_loopback(listen.host)) return {};
  auto token = read_token(arguments.token_file);
  monitor::require_token_for_monitor(listen, token);
  return token;
}

int run_as_rank(const launch::RankEnvironment& env, const job::JobConfig& job,
                const TrainArguments& arguments) {
  if (!arguments.listen.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "--listen starts a job, but RANK is set (or mpirun or srun is at work): this "
                "process is one rank of a job that another launcher has started; unset RANK, or "
                "leave --listen out");
  }
  if (!arguments.token_file.empty()) {
    throw Error(
        ErrorCode::InvalidArgument,
        "--token-file is for the process that starts a job, and this one is a rank of a job "
        "that another launcher has started: set BIMETAL_TOKEN_FILE for all of its ranks");
  }
  return run_rank({env, job, worker_of_rank(env, arguments.workers, job), arguments.report,
                   arguments.resume, arguments.profile,
                   trace_of(arguments.profile_trace, arguments.report, job)});
}

void add_options(CLI::App& command, TrainArguments& arguments) {
  add_job_options(command, arguments.job, arguments.set);
  add_deepspeed_option(command, arguments.deepspeed);
  command
      .add_option(
          "--worker", arguments.workers,
          "A worker of this machine: cpu, cpu:threads=1,speed=0.25, cuda:0, mps, or none; may be "
          "repeated (default: the job's, else one on the best device)")
      ->type_name("SPEC")
      ->allow_extra_args(false);
  command
      .add_option("--report", arguments.report,
                  "Write the run's figures here, and after a lost connection or the like each "
                  "rank's last calls beside it (FILE_flight_rank_R.json)")
      ->type_name("FILE.json");
  command
      .add_option("--resume", arguments.resume,
                  "Go on from a checkpoint, or from the newest one of a folder. The job is the "
                  "file's: what --set changed of it has to be said again")
      ->type_name("DIR");
  command
      .add_option("--profile", arguments.profile,
                  "Tell where the time of these steps goes, on all ranks")
      ->type_name("FIRST:LAST");
  command
      .add_option("--profile-trace", arguments.profile_trace,
                  "Write their trace here (default: trace.json beside the report or the "
                  "checkpoints)")
      ->type_name("FILE.json");
  command
      .add_option("--join-timeout", arguments.join_timeout_s, "How long to wait for all workers")
      ->type_name("SECONDS")
      ->check(CLI::PositiveNumber);
  command
      .add_option("--monitor", arguments.monitor,
                  "Show how the job gets on here, for `bimetal top` and Prometheus; port 0 takes a "
                  "free one")
      ->type_name("ADDR:PORT");
  command.add_option("--tensorboard", arguments.tensorboard, "Write scalars for TensorBoard here")
      ->type_name("DIR");
}

void add_host_options(CLI::App& command, TrainArguments& arguments) {
  auto* listen = command
                     .add_option("--listen", arguments.listen,
                                 "Wait here for workers of other machines (`bimetal join`)")
                     ->type_name("ADDR:PORT")
                     ->group("Several machines");
  auto* world_size = command
                         .add_option("--world-size", arguments.world_size,
                                     "Workers over all machines, these included")
                         ->type_name("N")
                         ->group("Several machines");
  command
      .add_option("--token-file", arguments.token_file,
                  "The job's shared secret, see `bimetal token`; needed beyond loopback")
      ->type_name("FILE")
      ->group("Several machines");
  command
      .add_option("--servers-here", arguments.servers_here,
                  "So many of the parameter servers run here; the others join (bimetal join "
                  "--server)")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->needs(listen)
      ->group("Several machines");
  add_encrypt(command, "Several machines");
  world_size->needs(listen);
}

/// Numbers of the parameter servers of this machine.
std::vector<int> servers_here(const TrainArguments& arguments, const job::JobConfig& job) {
  if (job.parallel.mode != "server") {
    if (arguments.servers_here == 0) return {};
    throw Error(ErrorCode::InvalidArgument, "--servers-here is for parallel.mode = \"server\"");
  }
  const int all = train::server_processes(job.servers);
  if (arguments.servers_here == 0 || arguments.servers_here == all) return first_servers(all);
  if (arguments.servers_here > all) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("--servers-here {}: the job has {} (servers.count)",
                            arguments.servers_here, all));
  }
  return first_servers(arguments.servers_here);
}

/// `--worker none` makes sense where workers come from elsewhere.
void require_work(const LocalRanks& ranks, const TrainArguments& arguments) {
  if (!ranks.workers.empty()) return;
  if (ranks.job.parallel.mode == "server" && !arguments.listen.empty()) return;
  throw Error(ErrorCode::InvalidArgument,
              "--worker none is for a machine with parameter servers alone: it needs --listen and "
              "parallel.mode = \"server\"");
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  LocalRanks ranks;
  ranks.job = load(arguments);
  if (!arguments.profile.empty()) require_profile(arguments.profile, ranks.job);
  if (const auto env = find_rank(ranks.job)) return run_as_rank(*env, ranks.job, arguments);
  ranks.token = token_for_monitor(arguments, ranks.job);
  ranks.workers = choose_workers_or_none(arguments.workers, ranks.job);
  ranks.servers = servers_here(arguments, ranks.job);
  // Links differ between machines alone.
  const int all_servers = train::server_processes(ranks.job.servers);
  if (static_cast<int>(ranks.servers.size()) == all_servers) {
    ranks.job.servers.weigh = false;
  }
  require_work(ranks, arguments);
  ranks.report = arguments.report;
  ranks.resume = arguments.resume;
  ranks.profile = arguments.profile;
  ranks.profile_trace = trace_of(arguments.profile_trace, arguments.report, ranks.job);
  launch::SignalWatch signals;
  if (arguments.listen.empty()) {
    ranks.job.cluster.workers = ranks.workers;
    return run_local_job(ranks, signals);
  }
  if (arguments.world_size == 0 && ranks.job.parallel.mode != "server") {
    throw Error(ErrorCode::InvalidArgument,
                "--listen needs --world-size: the workers over all machines");
  }
  return run_host_job(ranks, {arguments.listen, arguments.world_size, arguments.token_file},
                      signals);
}

void add_train(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<TrainArguments>();
  auto* command = app.add_subcommand("train", "Train a model on this and other machines' workers");
  add_options(*command, *arguments);
  add_host_options(*command, *arguments);
  command->footer(kTrainExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return train_command(*arguments); }; });
}

}  // namespace bimetal::cli
