#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/launch/rank_environment.h"

namespace bimetal::launch {
namespace {

/// Steps from here on are Slurm's own: the batch script, an interactive shell, the external one.
constexpr std::uint32_t kFirstSpecialStep = 0xfffffff0;

// Below the ports that systems hand out by themselves (from 32768 on Linux).
constexpr std::uint32_t kFirstPort = 15000, kPorts = 15000;

template <typename Number>
std::optional<Number> slurm_number(const Variables& variables, const char* name, Number least,
                                   Number most) {
  const auto text = variables(name);
  if (!text || text->empty()) return std::nullopt;
  Number value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}={} is not a whole number from {} to {}", name, *text, least, most));
  }
  return value;
}

template <typename Number>
Number slurm_number_of_step(const Variables& variables, const char* name, Number least,
                            Number most) {
  if (const auto value = slurm_number<Number>(variables, name, least, most)) return *value;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("srun has started this process, but {} is not set; start it by srun "
                          "itself, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and "
                          "MASTER_PORT",
                          name));
}

/// The step's own list; the job's may have nodes on which this step has no task.
std::string list_of_step(const Variables& variables, const char* of_step, const char* of_job) {
  for (const char* name : {of_step, of_job}) {
    if (auto text = variables(name); text && !text->empty()) return *text;
  }
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("srun has started this process, but neither {} nor {} is set", of_step, of_job));
}

RankPlace place_in_step(const Variables& variables, int tasks) {
  const auto on_nodes = expand_tasks_per_node(
      list_of_step(variables, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"));
  const int nodes = static_cast<int>(on_nodes.size());
  const int node = slurm_number<int>(variables, "SLURM_NODEID", 0, nodes - 1).value_or(0);
  const int here = on_nodes[static_cast<std::size_t>(node)];
  RankPlace place =
      place_of(on_nodes, node, slurm_number_of_step<int>(variables, "SLURM_LOCALID", 0, here - 1));
  // Slurm may deal tasks out to the nodes in turn; the number that it gives counts.
  place.rank = slurm_number_of_step<int>(variables, "SLURM_PROCID", 0, tasks - 1);
  place.world_size = tasks;
  return place;
}

net::Endpoint meeting_point_of_step(const Variables& variables, const RankPlace& place,
                                    std::uint64_t job, std::uint32_t step) {
  net::Endpoint master{"127.0.0.1", 0};
  if (const auto host = variables("MASTER_ADDR"); host && !host->empty()) {
    master.host = *host;
  } else if (place.local_world_size != place.world_size) {
    master.host =
        expand_node_list(list_of_step(variables, "SLURM_STEP_NODELIST", "SLURM_NODELIST")).front();
  }
  const auto from_numbers = static_cast<std::uint16_t>(kFirstPort + (job * 31 + step) % kPorts);
  master.port =
      slurm_number<std::uint16_t>(variables, "MASTER_PORT", 1, 65535).value_or(from_numbers);
  return master;
}

}  // namespace

std::optional<SlurmTask> slurm_task(const Variables& variables) {
  constexpr int kMostTasks = std::numeric_limits<int>::max();
  const auto step = slurm_number<std::uint32_t>(variables, "SLURM_STEP_ID", 0, UINT32_MAX);
  const auto tasks = slurm_number<int>(variables, "SLURM_STEP_NUM_TASKS", 1, kMostTasks);
  if (!step || !tasks || *step >= kFirstSpecialStep || !variables("SLURM_PROCID")) {
    return std::nullopt;
  }
  const auto job = slurm_number_of_step<std::uint64_t>(variables, "SLURM_JOB_ID", 0, UINT64_MAX);
  SlurmTask task;
  task.place = place_in_step(variables, *tasks);
  task.master = meeting_point_of_step(variables, task.place, job, *step);
  task.job_id = fmt::format("slurm-{}.{}", job, *step);
  return task;
}

std::optional<SlurmTask> slurm_task() {
  return slurm_task(environment_variable);
}

RankEnvironment rank_in(const SlurmTask& task) {
  RankEnvironment env;
  env.rank = task.place.rank;
  env.world_size = task.place.world_size;
  env.local_rank = task.place.local_rank;
  env.local_world_size = task.place.local_world_size;
  env.master = task.master;
  env.store = StoreOwner::RankZero;
  env.job_id = task.job_id;
  return env;
}

}  // namespace bimetal::launch
