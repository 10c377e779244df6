#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/cli/command.h"
#include "bimetal/cli/fabric/launch_task.h"
#include "bimetal/cli/terminal.h"
#ifndef _WIN32
#include "bimetal/cli/start/host_meeting.h"
#include "bimetal/cli/start/way_in.h"
#endif
#include "bimetal/launch/agent/agent_message.h"
#include "bimetal/launch/ssh/host_launcher.h"
#include "bimetal/launch/system/environment.h"
#include "bimetal/progress/text.h"

namespace bimetal::cli {
namespace {

constexpr const char* kLaunchExamples =
    R"(COMMAND may be any program, or a file that ends in .py, which Python runs. It gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, NODE_RANK,
MASTER_ADDR and MASTER_PORT as under torchrun, and the job's token in BIMETAL_TOKEN.

Examples:
  bimetal launch -n 2 train.py --epochs 3
  bimetal launch -n 4 -- python train.py
  bimetal launch --share train.py             (on the other machine, where train.py is: bimetal join)
  bimetal launch -H pc1:2,pc2:2 -- bimetal train job.toml
  bimetal launch -n 4 --elastic=2 --restart 3 -- bimetal train job.toml
  bimetal launch -H localhost:1,me@mac.local:1 --remote-bimetal /opt/bimetal/bin/bimetal -- python3 train.py
  bimetal launch --hostfile hosts --num_nodes 2 --num_gpus 4 -- python train.py --deepspeed_config ds.json
  srun -n 4 bimetal launch --slurm -- python train.py
  mpirun -n 4 bimetal launch --mpi -- python train.py

Exit status: 0 if every rank ended with 0 (of an elastic job: those who were left), that of the first
rank that failed (128 + N if signal N killed it), 130 after Ctrl-C. docs/launching.md tells more.)";

constexpr const char* kOtherPython =
    "\n  Its Python there is the first in that host's own PATH, and has that host's modules: hand "
    "on yours by --env PATH (a virtual environment that lies at the same place) or --env "
    "PYTHONPATH";

struct LaunchArguments {
  std::optional<int> ranks;
  std::optional<int> hosts_used, ranks_each;  ///< as of the deepspeed launcher
  std::string hosts, host_file;
  launch::SshOptions ssh;
  std::vector<std::string> environment;
  std::string directory, master_host;
  int master_port = 0;
  bool no_prefix = false;
  Starter starter;
#ifndef _WIN32
  HostOptions host;
#endif
  int elastic = 0, restarts = 0;  ///< least number of members; 0: as the command is
  double grace_s = 10, start_timeout_s = 60, silence_s = 60;
  std::vector<std::string> command;
};

std::vector<launch::HostRanks> hosts_of(const LaunchArguments& arguments) {
  const auto placed = [&](std::vector<launch::HostSlots> hosts) {
    return launch::place_ranks(
        launch::part_of_hosts(std::move(hosts), arguments.hosts_used, arguments.ranks_each),
        arguments.ranks);
  };
  if (!arguments.hosts.empty()) return placed(launch::parse_host_list(arguments.hosts));
  if (!arguments.host_file.empty())
    return placed(launch::read_host_file(path_of_utf8(arguments.host_file)));
  const auto here = arguments.ranks ? arguments.ranks : arguments.ranks_each;
  if (!here) {
    throw Error(ErrorCode::InvalidArgument,
                "how many ranks, and where? Say -n N for this machine, or -H host1:N,host2:N");
  }
  return placed({{"localhost", *here}});
}

/// Settings of Bimetal that hold for the whole job. Not the token, which goes another way, nor what
/// means something in this process alone.
bool is_job_setting(std::string_view name) {
  return name.starts_with("BIMETAL_") && !name.starts_with("BIMETAL_TOKEN") &&
         !name.ends_with("_FD") && name != "BIMETAL_STORE" && name != "BIMETAL_REQUEST" &&
         name != "BIMETAL_CODE" && name != launch::kBoardVariable && name != launch::kDoorVariable;
}

/// The variables that --env asks for.
launch::NamedValues more_environment(const LaunchArguments& arguments) {
  launch::NamedValues values;
  for (const auto& wish : arguments.environment) {
    const auto equals = wish.find('=');
    const auto name = wish.substr(0, equals);
    if (name.starts_with("BIMETAL_TOKEN")) {
      throw Error(ErrorCode::InvalidArgument,
                  "the ranks get the job's token in any case, and not by a command line: set "
                  "BIMETAL_TOKEN_FILE here to choose it, and leave out --env " +
                      name);
    }
    const auto here = launch::environment_variable(name);
    if (name.empty() || (equals == std::string::npos && !here)) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("--env {}: that variable is not set here; set it, or write "
                              "NAME=VALUE",
                              wish));
    }
    values.emplace_back(name, equals == std::string::npos ? *here : wish.substr(equals + 1));
  }
  return values;
}

net::Token token_of_job() {
  const auto own = net::Token::from_environment();
  return own.empty() ? net::Token::generate() : own;
}

/// Without hosts and token.
launch::HostsPlan plan_of(const LaunchArguments& arguments) {
  auto plan = plan_from_here();
  plan.command = arguments.command;
  plan.directory_is_needed = !arguments.directory.empty();
  if (plan.directory_is_needed) plan.directory = arguments.directory;
  const auto more = more_environment(arguments);
  plan.environment.insert(plan.environment.end(), more.begin(), more.end());
  plan.master_host = arguments.master_host;
  plan.master_port = static_cast<std::uint16_t>(arguments.master_port);
  plan.ssh = arguments.ssh;
  plan.prefixed = !arguments.no_prefix;
  plan.elastic = arguments.elastic > 0;
  plan.restarts = arguments.restarts;
  plan.start_timeout = milliseconds_of(arguments.start_timeout_s);
  plan.grace = milliseconds_of(arguments.grace_s);
  plan.silence = milliseconds_of(arguments.silence_s);
  return plan;
}

/// The end of a job that has said where its figures are, or that has lost ranks.
void print_end_of_ranks(const launch::HostsResult& result, int ranks, std::size_t hosts,
                        double elapsed_s) {
  if (result.left.empty() && result.lost == 0) return;
  auto text = fmt::format("bimetal: {}{} ended after {}", counted(ranks, "rank", "ranks"),
                          hosts > 1 ? fmt::format(" on {} hosts", hosts) : "",
                          progress::clock_text(elapsed_s));
  if (result.lost > 0) text += fmt::format(", {} lost", result.lost);
  if (result.restarts > 0) text += fmt::format(", {} started again", result.restarts);
  if (!result.left.empty()) text += "; " + result.left;
  print_to_errors(text);
}

int told_status(const launch::HostsResult& result, int ranks) {
  if (result.interrupted) {
    print_to_errors(result.killed ? "bimetal: the ranks were killed" : "bimetal: interrupted");
    return kInterrupted;
  }
  if (!result.failure) return kSuccess;
  const auto& [rank, host, pid, exit, misses_module] = *result.failure;
  if (exit.signal == 0 && exit.status == kInterrupted) {
    print_to_errors(
        fmt::format("bimetal: interrupted: rank {} on {} (pid {}) has ended as it was asked to",
                    rank, host, pid));
    return kInterrupted;
  }
  print_to_errors(fmt::format("bimetal: error: rank {} on {} (pid {}) {}{}{}", rank, host, pid,
                              launch::how_it_ended(exit),
                              ranks > 1 && !result.elastic ? "; the other ranks were stopped" : "",
                              misses_module ? kOtherPython : ""));
  return exit.signal != 0 ? 128 + exit.signal : exit.status;
}

#ifndef _WIN32
/// With machines whose users let each other in.
int share_launch(const LaunchArguments& arguments) {
  const int ranks = arguments.ranks.value_or(arguments.ranks_each.value_or(1));
  // Before the plan, which takes this process's settings: shared jobs are encrypted.
  const int world_size = world_size_of(arguments.host, ranks);
  return share_launch(plan_of(arguments), ranks, world_size, arguments.host);
}
#endif

int launch_command(const LaunchArguments& arguments) {
  if (arguments.command.empty()) {
    throw Error(
        ErrorCode::InvalidArgument,
        "what shall be launched? Say it last, as in: bimetal launch -n 2 train.py, or -- and any "
        "command");
  }
  if (arguments.elastic < 0) {
    throw Error(ErrorCode::InvalidArgument, "--elastic: so few ranks cannot go on; say 1 or more");
  }
  if (arguments.elastic > 0) {
    launch::set_environment_variable(launch::kElasticVariable, std::to_string(arguments.elastic));
  }
  if (const auto status = follow_starter(arguments.starter, arguments.command)) return *status;
#ifndef _WIN32
  if (arguments.host.expects_others()) return share_launch(arguments);
#endif
  auto plan = plan_of(arguments);
  plan.hosts = hosts_of(arguments);
  plan.token = token_of_job();
  launch::SignalWatch signals;
  return run_and_tell(plan, signals);
}

void add_place_options(CLI::App& command, LaunchArguments& arguments) {
  auto* ranks = command
                    .add_option("-n,--np", arguments.ranks,
                                "Ranks over all hosts (default: every slot of the hosts)")
                    ->type_name("N")
                    ->check(CLI::PositiveNumber);
  auto* hosts =
      command.add_option("-H,--hosts", arguments.hosts, "Where: host1:4,user@host2:2,[fd00::2]:1")
          ->type_name("HOST:SLOTS,…");
  auto* file = command
                   .add_option("--hostfile", arguments.host_file,
                               "The same from a file, one \"HOST slots=N\" per line")
                   ->type_name("FILE")
                   ->excludes(hosts);
  auto* ranks_each = command
                         .add_option("--num_gpus,--num-gpus", arguments.ranks_each,
                                     "Ranks on each host, as of the deepspeed launcher")
                         ->type_name("N")
                         ->check(CLI::PositiveNumber)
                         ->excludes(ranks);
  auto* hosts_used = command
                         .add_option("--num_nodes,--num-nodes", arguments.hosts_used,
                                     "The first N of the hosts alone, likewise")
                         ->type_name("N")
                         ->check(CLI::PositiveNumber);
  command
      .add_flag("--elastic", arguments.elastic,
                "Ranks go on without those that are lost, with MIN (1) or more; a job with "
                "elastic.min_workers, and a script with bimetal.elastic, do so without this")
      ->type_name("[=MIN]");
  auto* restart = command
                      .add_option("--restart", arguments.restarts,
                                  "Start lost ranks of such a job again, N times in all")
                      ->type_name("N")
                      ->check(CLI::PositiveNumber);
  std::vector<CLI::Option*> places = {ranks, hosts, file, ranks_each, hosts_used, restart};
#ifndef _WIN32
  add_host_options(command, arguments.host);
  for (const auto* name : {"--share", "--listen"}) {
    auto* option = command.get_option(name);
    for (auto* other : {hosts, file, hosts_used}) option->excludes(other);
    places.push_back(option);
  }
#endif
  add_starter_options(command, arguments.starter, places);
}

void add_host_options(CLI::App& command, LaunchArguments& arguments) {
  constexpr const char* kGroup = "Other hosts";
  command.add_option("--ssh-port", arguments.ssh.port, "Port of their sshd")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535))
      ->group(kGroup);
  command
      .add_option("--ssh-option", arguments.ssh.options,
                  "For ssh's -o, as in IdentityFile=KEY; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->group(kGroup);
  command
      .add_option("--remote-bimetal", arguments.ssh.remote_program,
                  "Bimetal there (default: the same path as here, else the one in PATH)")
      ->type_name("PATH")
      ->group(kGroup);
  command
      .add_option("--env", arguments.environment,
                  "Hand this variable on; BIMETAL_… are in any case. May be repeated")
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false)
      ->group(kGroup);
  command
      .add_option("--chdir", arguments.directory,
                  "Start in this folder (default: as here, or home where there is none such)")
      ->type_name("DIR")
      ->group(kGroup);
  command
      .add_option("--master-addr,--master_addr", arguments.master_host,
                  "Address of the first host that the others reach (default: found out)")
      ->type_name("ADDR")
      ->group(kGroup);
  command
      .add_option("--master-port,--master_port", arguments.master_port,
                  "Port there (default: a free one)")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535))
      ->group(kGroup);
}

void add_time_options(CLI::App& command, LaunchArguments& arguments) {
  const auto add = [&](const char* name, double& seconds, const char* meaning) {
    command.add_option(name, seconds, meaning)
        ->type_name("SECONDS")
        ->capture_default_str()
        ->check(CLI::PositiveNumber)
        ->group("How long to wait");
  };
  add("--start-timeout", arguments.start_timeout_s, "For all hosts to be ready");
  add("--grace", arguments.grace_s,
      "For the other ranks to end by themselves when one has failed, before they are killed");
  add("--silence", arguments.silence_s,
      "Without a word from a host, until it counts as lost; the same the other way round");
}

void add_agent(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("launch-agent", "What `launch` starts on each host");
  command->group("");  // not for people
  command->callback(
      [&action] { action = [] { return launch::run_host_agent(std::string(release())); }; });
}

/// Whether the word after this one is the option's, too.
bool takes_next(const CLI::App& launch, const std::string& word) {
  const bool is_long = word.starts_with("--");
  if (is_long ? word.find('=') != std::string::npos : word.size() > 2) return false;
  const auto* option = launch.get_option_no_throw(word);
  return option && option->get_items_expected_max() > 0;
}

}  // namespace

launch::HostsPlan plan_from_here() {
  launch::HostsPlan plan;
  plan.directory = utf8_of_path(std::filesystem::current_path());
  for (auto& variable : launch::own_environment()) {
    if (is_job_setting(variable.first)) plan.environment.push_back(std::move(variable));
  }
  plan.version = release();
  plan.note = [](const std::string& text) { print_to_errors("bimetal: " + text); };
  return plan;
}

int run_and_tell(const launch::HostsPlan& plan, launch::SignalWatch& signals) {
  const int ranks = plan.hosts.back().first_rank + plan.hosts.back().count;
  const Stopwatch watch;
  const auto result = launch::run_on_hosts(plan, signals);
  print_end_of_ranks(result, ranks, plan.hosts.size(), watch.seconds());
  return told_status(result, ranks);
}

void add_launch(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<LaunchArguments>();
  auto* command = app.add_subcommand(
      "launch", "Run any command as the ranks of a job: here, by ssh, under Slurm or mpirun");
  add_place_options(*command, *arguments);
  command->add_flag("--no-prefix", arguments->no_prefix, "Show lines without \"[RANK] \" in front");
  add_host_options(*command, *arguments);
  add_time_options(*command, *arguments);
  command->add_option("command", arguments->command, "What every rank runs")
      ->type_name("[--] COMMAND ARGS…");
  command->footer(kLaunchExamples);
  command->callback(
      [arguments, &action] { action = [arguments] { return launch_command(*arguments); }; });
  add_agent(app, action);
  add_mpi_meeting(app, action);
}

std::vector<std::string> with_command_apart(const CLI::App& app, std::vector<std::string> words) {
  if (words.empty() || words.front() != "launch") return words;
  const auto& launch = *app.get_subcommand("launch");
  for (std::size_t at = 1; at < words.size(); ++at) {
    if (words[at] == "--") break;
    if (words[at].starts_with('-')) {
      at += takes_next(launch, words[at]);
    } else {
      words.insert(words.begin() + static_cast<std::ptrdiff_t>(at), "--");
      break;
    }
  }
  return words;
}

}  // namespace bimetal::cli
