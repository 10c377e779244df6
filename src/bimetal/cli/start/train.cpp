#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/job_options.h"
#include "bimetal/cli/json_output.h"
#include "bimetal/cli/python_command.h"
#include "bimetal/cli/rank/profile_output.h"
#include "bimetal/cli/rank/rank.h"
#include "bimetal/cli/start/run_job.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/rank_environment.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/net/endpoint.h"

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
  bimetal train job.toml --page
  torchrun --no-python --nproc-per-node 2 bimetal train job.toml
  mpirun -n 4 bimetal train job.toml
  srun -n 4 bimetal train job.toml
  bimetal launch -H pc1:2,pc2:2 -- bimetal train job.toml
  bimetal train job.toml --share
  bimetal train job.toml --listen 192.168.1.5:29400 --world-size 2 --token-file token

Exit status: 0 trained, 130 interrupted (with a checkpoint, if the job has them), others: docs/errors.md.)";

constexpr const char* kPageAnywhere = "anywhere";  // --page without an address

struct TrainArguments {
  std::string job, deepspeed;
  std::vector<std::string> set;      ///< "section.key=value"
  std::vector<std::string> workers;  ///< worker specs
  std::optional<double> join_timeout_s;
  std::string monitor, tensorboard;  ///< monitor.listen and monitor.tensorboard_dir
  std::string page;                  ///< ADDR:PORT, which monitor.listen becomes
  bool no_page = false;
  HostOptions host;
  int servers_here = 0;  ///< 0: all
  bool no_elastic = false;
  RankRequest request;  ///< the part that is left to the ranks
  RunRank run_rank;
};

/// Whoever only starts ranks needs neither libtorch nor Python. Before MPI is asked, which the
/// other program will do.
void enter_program_as_rank(const TrainArguments& arguments, const job::JobConfig& job) {
  if (!arguments.run_rank && may_be_rank(job)) become_whole_program();
  if (launch::looks_like_rank()) enter_python_for(job);
}

/// Over all machines; 0 if that is not known.
int ranks_of(const TrainArguments& arguments, const job::JobConfig& job) {
  if (const auto env = find_rank(job)) return env->world_size;
  const auto here = static_cast<int>(choose_workers_or_none(arguments.workers, job).size());
  return arguments.host.expects_others() ? arguments.host.all_workers(here) : here;
}

/// The page is the monitor's, and where that is.
void set_page(const TrainArguments& arguments, job::MonitorConfig& monitor) {
  if (arguments.no_page) monitor.page = "off";
  if (arguments.page.empty()) return;
  monitor.page = "on";
  if (arguments.page == kPageAnywhere) return;
  const auto listen = net::to_string(net::parse_endpoint(arguments.page));
  if (!arguments.monitor.empty() && listen != monitor.listen) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the page is at the monitor's address: --page {} and --monitor {} name "
                            "two; leave one out",
                            arguments.page, arguments.monitor));
  }
  monitor.listen = listen;
}

job::JobConfig load(const TrainArguments& arguments) {
  auto job = read_job({arguments.job, arguments.deepspeed, arguments.set},
                      [&](const job::JobConfig& so_far) {
                        enter_program_as_rank(arguments, so_far);
                        return ranks_of(arguments, so_far);
                      });
  if (launch::looks_like_rank() && job.elastic.min_workers == 0 && !arguments.no_elastic) {
    job.elastic.min_workers = launch::elastic_minimum();
  }
  job::require_possible(job, {});
  enter_program_as_rank(arguments, job);
  if (arguments.join_timeout_s) job.cluster.join_timeout_s = *arguments.join_timeout_s;
  if (!arguments.monitor.empty()) {
    job.monitor.listen = net::to_string(net::parse_endpoint(arguments.monitor));
  }
  set_page(arguments, job.monitor);
  if (!arguments.tensorboard.empty()) job.monitor.tensorboard_dir = arguments.tensorboard;
  return job;
}

/// The token of a job on this machine, if it is to be one that others have, too. Asked for before
/// anything starts.
net::Token token_for_monitor(const TrainArguments& arguments, const job::JobConfig& job) {
  if (job.monitor.listen.empty()) {
    if (!arguments.host.expects_others() && !arguments.host.token_file.empty()) {
      throw Error(ErrorCode::InvalidArgument, "--token-file goes with --listen or --monitor");
    }
    return {};
  }
  const auto listen = net::parse_endpoint(job.monitor.listen);
  if (net::is_loopback(listen.host)) return {};
  auto token = read_token(arguments.host.token_file);
  monitor::require_token_for_monitor(listen, token);
  return token;
}

/// Whether workers may come and go.
bool is_elastic(const TrainArguments& arguments, const job::JobConfig& job) {
  const bool asked = job.elastic.min_workers > 0 || arguments.host.expects_others();
  return asked && !arguments.no_elastic && job::may_be_elastic(job);
}

/// The launcher of this rank must let it live when another rank is lost.
void require_to_go_on(const launch::RankEnvironment& env, bool elastic) {
  if (!elastic && !env.door.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                "this rank was started in the place of a lost one, and its job is not elastic: set "
                "elastic.min_workers, or leave --restart out",
                env.rank);
  }
  if (!elastic || env.store != launch::StoreOwner::Nobody) return;
  throw Error(ErrorCode::Unsupported,
              "elastic.min_workers needs ranks that meet by TCP: MPI cannot go on when one of them "
              "is lost; start them by `mpirun … bimetal launch --mpi --elastic -- bimetal train "
              "…` (docs/elastic.md), or leave elastic.min_workers out",
              env.rank);
}

int run_as_rank(const launch::RankEnvironment& env, RankRequest request,
                const TrainArguments& arguments) {
  refuse_in_rank(arguments.host);
  request.elastic = is_elastic(arguments, request.job);
  require_to_go_on(env, request.elastic);
  request.door = env.door;
  if (!request.door.empty()) request.resume.clear();  // the others know where the job is
  if (!env.server) {
    request.worker = worker_of_rank(env, arguments.workers, request.job);
    return arguments.run_rank(env, request);
  }
  request.work = Work::serve_parameters;
  request.server = *env.server;
  request.joined = *env.server > 0;
  request.listen = env.own_address;
  return arguments.run_rank(env, request);
}

void add_options(CLI::App& command, TrainArguments& arguments) {
  add_job_options(command, arguments.job, arguments.set);
  add_deepspeed_option(command, arguments.deepspeed);
  add_workers(command, arguments.workers,
              "A worker of this machine: cpu, cpu:threads=1,speed=0.25, cuda:0, mps, or none; may "
              "be repeated (default: the job's, else one on the best device)");
  command
      .add_option("--report", arguments.request.report,
                  "Write the run's figures here, and after a lost connection or the like each "
                  "rank's last calls beside it (FILE_flight_rank_R.json)")
      ->type_name("FILE.json");
  command.add_flag("--json", arguments.request.json,
                   "Print these figures at the end; progress goes to standard error");
  command
      .add_option("--resume", arguments.request.resume,
                  "Go on from a checkpoint, or from the newest one of a folder. The job is the "
                  "file's: what --set changed of it has to be said again")
      ->type_name("DIR");
  command
      .add_option("--profile", arguments.request.profile,
                  "Tell where the time of these steps goes, on all ranks")
      ->type_name("FIRST:LAST");
  command
      .add_option("--profile-trace", arguments.request.profile_trace,
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
  auto* page = command
                   .add_option("--page", arguments.page,
                               "Show it to a browser, too, which may save, stop and profile: here, "
                               "or at a free port of this machine alone; without this where "
                               "standard output is a terminal")
                   ->type_name("[ADDR:PORT]")
                   ->expected(0, 1)
                   ->default_str(kPageAnywhere);
  command.add_flag("--no-page", arguments.no_page, "No page, not at a terminal either")
      ->excludes(page);
  command.add_flag(
      "--no-elastic", arguments.no_elastic,
      "The job ends when a worker is lost (default: of several machines' workers those "
      "who are left go on, and others may join)");
  command.add_option("--tensorboard", arguments.tensorboard, "Write scalars for TensorBoard here")
      ->type_name("DIR");
}

void add_several_machines(CLI::App& command, TrainArguments& arguments) {
  add_host_options(command, arguments.host);
  command
      .add_option("--servers-here", arguments.servers_here,
                  "So many of the parameter servers run here; the others join (bimetal join "
                  "--server)")
      ->type_name("N")
      ->check(CLI::PositiveNumber)
      ->group("Several machines");
}

/// Numbers of the parameter servers of this machine.
std::vector<int> servers_here(const TrainArguments& arguments, const job::JobConfig& job) {
  if (job.parallel.mode != "server") {
    if (arguments.servers_here == 0) return {};
    throw Error(ErrorCode::InvalidArgument, "--servers-here is for parallel.mode = \"server\"");
  }
  const int all = job::server_processes(job.servers);
  if (arguments.servers_here > 0 && !arguments.host.expects_others()) {
    throw Error(ErrorCode::InvalidArgument, "--servers-here goes with --share or --listen");
  }
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
  if (has_servers(ranks.request) && arguments.host.expects_others()) return;
  throw Error(
      ErrorCode::InvalidArgument,
      "--worker none is for a machine with parameter servers alone: it needs --share or --listen "
      "and parallel.mode = \"server\"");
}

int train_command(const TrainArguments& arguments) {
  LocalRanks ranks{arguments.request};
  auto& request = ranks.request;
  auto& job = request.job = load(arguments);
  if (request.json) keep_output_for_json();
  if (!request.profile.empty()) require_profile(request.profile, job);
  request.profile_trace = trace_of(request.profile_trace, request.report, job);
  if (const auto env = find_rank(job)) return run_as_rank(*env, request, arguments);
  refuse_without_others(arguments.host);
  const auto token = token_for_monitor(arguments, job);
  ranks.workers = choose_workers_or_none(arguments.workers, job);
  ranks.servers = servers_here(arguments, job);
  // Links differ between machines alone.
  const int all_servers = job::server_processes(job.servers);
  if (static_cast<int>(ranks.servers.size()) == all_servers) job.servers.weigh = false;
  require_work(ranks, arguments);
  request.elastic = is_elastic(arguments, job);
  launch::SignalWatch signals;
  if (arguments.host.expects_others()) return run_host_job(ranks, arguments.host, signals);
  job.cluster.workers = ranks.workers;
  return run_local_job(ranks, signals, token);
}

}  // namespace

void add_train(CLI::App& app, Action& action, RunRank run_rank) {
  auto arguments = std::make_shared<TrainArguments>();
  arguments->run_rank = std::move(run_rank);
  auto* command = app.add_subcommand("train", "Train a model on this and other machines' workers");
  add_options(*command, *arguments);
  add_several_machines(*command, *arguments);
  command->footer(kTrainExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return train_command(*arguments); }; });
}

}  // namespace bimetal::cli
