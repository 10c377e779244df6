#include "bimetal/cli/train/local_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <system_error>

#include "bimetal/cli/exit_status.h"
#include "bimetal/cli/terminal.h"
#include "bimetal/cli/train/rank_process.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/launch/local/find_program.h"
#include "bimetal/launch/local/process.h"
#include "bimetal/launch/local/python_program.h"
#include "bimetal/task/catalog/python_tasks.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::cli {
namespace {

constexpr const char* kFlightVariable = "BIMETAL_FLIGHT_RECORDER";

/// For the process that leads the job; others of its kind take no notice.
void add_lead_options(const LocalRanks& ranks, std::vector<std::string>& command) {
  if (!ranks.report.empty()) command.insert(command.end(), {"--report", ranks.report.string()});
  if (!ranks.resume.empty()) command.insert(command.end(), {"--resume", ranks.resume.string()});
  if (!ranks.profile.empty()) {
    command.insert(command.end(), {"--profile", ranks.profile});
    command.insert(command.end(), {"--profile-trace", ranks.profile_trace});
  }
  if (!ranks.summary) command.push_back("--no-summary");
  if (ranks.stop_after_s > 0) {
    command.insert(command.end(), {"--stop-after", fmt::format("{}", ranks.stop_after_s)});
  }
}

void add_servers(const LocalRanks& ranks, launch::LaunchPlan& plan) {
  const int workers = static_cast<int>(plan.ranks.size());
  const int shards = static_cast<int>(ranks.job.servers.weights.size());
  const int servers = train::server_processes(ranks.job.servers);
  for (const int server : ranks.servers) {
    std::vector<std::string> command = {launch::own_program().string(), "server", "--index",
                                        std::to_string(server)};
    if (!ranks.server_address.empty()) {
      command.insert(command.end(), {"--listen", ranks.server_address});
    }
    add_lead_options(ranks, command);
    plan.ranks.push_back({fmt::format("parameter server {}", server), command});
    if (servers == shards) continue;
    const auto copy = std::ranges::find(ranks.servers, (server + shards) % servers);
    plan.ranks.back().copy = copy == ranks.servers.end()
                                 ? launch::kCopyElsewhere
                                 : workers + static_cast<int>(copy - ranks.servers.begin());
  }
}

}  // namespace

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

std::vector<int> first_servers(int count) {
  std::vector<int> servers(static_cast<std::size_t>(count));
  std::iota(servers.begin(), servers.end(), 0);
  return servers;
}

launch::LaunchPlan plan_of(const LocalRanks& ranks) {
  launch::LaunchPlan plan;
  const auto program = launch::own_program().string();
  // Told once, and not by every rank.
  if (task::is_python_task(ranks.job)) launch::find_program(launch::python_program());
  // `bimetal plan` measures the devices alone.
  const bool with_servers =
      ranks.job.parallel.mode == "server" && ranks.rank_command.front() == "worker";
  for (const auto& worker : ranks.workers) {
    std::vector<std::string> command = {program};
    command.insert(command.end(), ranks.rank_command.begin(), ranks.rank_command.end());
    command.insert(command.end(), {"--worker", worker});
    if (with_servers && ranks.joined) command.push_back("--joined");
    if (!with_servers) add_lead_options(ranks, command);
    plan.ranks.push_back({worker, command, with_servers});
  }
  if (with_servers) {
    add_servers(ranks, plan);
    // A job that is resumed at its end may still wait for servers when its workers have ended.
    plan.grace_after_finish += milliseconds_of(ranks.job.cluster.join_timeout_s);
  }
  if (ranks.job.zero.copies > 1) {
    // A rank that computes sees a loss when it next waits for others.
    plan.grace_after_failure =
        std::max(plan.grace_after_failure, milliseconds_of(ranks.job.parallel.timeout_s));
    // They meet, even out and save; each of these may take a time-out, and the disk be slow.
    plan.longest_rescue = std::max(plan.longest_rescue, 10 * plan.grace_after_failure);
  }
  plan.environment = {{kJobVariable, job::to_toml(ranks.job)}};
  // Beside the report, unless the user has said where.
  if (!ranks.report.empty() && std::getenv(kFlightVariable) == nullptr) {
    const auto dump = ranks.report.stem().string() + "_flight.json";
    plan.environment.emplace_back(kFlightVariable, (ranks.report.parent_path() / dump).string());
  }
  return plan;
}

int conclude(const launch::LaunchResult& result) {
  for (const auto& name : result.left_behind) {
    print_to_errors(fmt::format(
        "bimetal: {} did not end with the job, which is done; it was stopped or stuck, and has "
        "been killed",
        name));
  }
  if (!result.interrupted) return kSuccess;
  if (!result.killed) {
    print_to_errors("bimetal: interrupted");
  } else if (result.last_checkpoint.empty()) {
    print_to_errors("bimetal: ended at once");
  } else {
    print_to_errors(
        fmt::format("bimetal: ended at once; the last checkpoint is {0}; go on with --resume {0}",
                    result.last_checkpoint));
  }
  return kInterrupted;
}

void announce_stop() {
  print_to_errors(
      "bimetal: stopping after this step, with a checkpoint where the job has them; Ctrl-C again "
      "ends at once");
}

Error with_resume_hint(const launch::JobFailed& failure) {
  std::string text = failure.what();
  if (!failure.rescue().empty()) text += fmt::format("\n  Of zero.copies: {}", failure.rescue());
  // What was saved may have gone with what the job has failed of.
  std::error_code gone;
  if (const auto& checkpoint = failure.last_checkpoint();
      std::filesystem::is_directory(checkpoint, gone)) {
    text += fmt::format("\n  Last checkpoint: {0}; go on with --resume {0}", checkpoint);
  }
  return {failure.code(), text, failure.rank()};
}

}  // namespace bimetal::cli
