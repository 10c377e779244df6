#include "bimetal/launch/rank_environment.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "bimetal/base/error.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/net/mpi/library.h"
#include "bimetal/net/mpi/mpi_mesh.h"

namespace bimetal::launch {
namespace {

constexpr const char* kAllNames = "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT";

std::string required(const Variables& variables, const char* name) {
  if (auto value = variables(name); value && !value->empty()) return *value;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("RANK is set, so this process is one rank of a job, but {} is not; "
                          "set {} for each rank, or unset RANK to start a job here",
                          name, kAllNames));
}

int integer(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{}={} is not a whole number from {} to {}", name, text, least, most));
  }
  return value;
}

int required_integer(const Variables& variables, const char* name, int least, int most) {
  return integer(name, required(variables, name), least, most);
}

int optional_integer(const Variables& variables, const char* name, int otherwise, int least,
                     int most) {
  const auto text = variables(name);
  return text && !text->empty() ? integer(name, *text, least, most) : otherwise;
}

StoreOwner store_owner(const Variables& variables) {
  if (variables("BIMETAL_STORE") == "launcher") return StoreOwner::Launcher;
  if (variables("BIMETAL_STORE") == "parameter_server") return StoreOwner::ParameterServer;
  if (variables("TORCHELASTIC_USE_AGENT_STORE") == "True") return StoreOwner::TorchAgent;
  return StoreOwner::RankZero;
}

RankEnvironment rank_in(const net::MpiWorld& world) {
  RankEnvironment env;
  env.rank = world.rank;
  env.world_size = world.size;
  env.local_rank = world.local_rank;
  env.local_world_size = world.local_size;
  env.store = StoreOwner::Nobody;
  return env;
}

/// A step of one task is a process like any other, as under mpirun.
std::optional<RankEnvironment> rank_by_slurm() {
  const auto task = slurm_task();
  if (!task || task->place.world_size == 1) return std::nullopt;
  // Processes that mpirun has started by srun inherit the variables of its helpers.
  const auto mpi = net::mpi::launch_environment();
  if (mpi && mpi->world_size != task->place.world_size) return std::nullopt;
  return rank_in(*task);
}

}  // namespace

std::optional<RankEnvironment> rank_from_environment(const Variables& variables) {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (!variables("RANK")) return std::nullopt;

  RankEnvironment env;
  env.world_size = required_integer(variables, "WORLD_SIZE", 1, kMost);
  env.rank = required_integer(variables, "RANK", 0, env.world_size - 1);
  env.master.host = required(variables, "MASTER_ADDR");
  env.master.port = static_cast<std::uint16_t>(
      required_integer(variables, "MASTER_PORT", 1, std::numeric_limits<std::uint16_t>::max()));
  env.local_rank = env.world_size == 1
                       ? optional_integer(variables, "LOCAL_RANK", 0, 0, 0)
                       : required_integer(variables, "LOCAL_RANK", 0, env.world_size - 1);
  const int assumed_local = net::is_loopback(env.master.host) ? env.world_size : env.local_rank + 1;
  env.local_world_size = optional_integer(variables, "LOCAL_WORLD_SIZE", assumed_local,
                                          env.local_rank + 1, env.world_size);
  env.store = store_owner(variables);
  if (env.store == StoreOwner::ParameterServer && variables("BIMETAL_SERVER")) {
    env.server = required_integer(variables, "BIMETAL_SERVER", 0, kMost);
  }
  env.own_address = variables("BIMETAL_ADDRESS").value_or("");
  env.door = variables(kDoorVariable).value_or("");
  if (auto id = variables("TORCHELASTIC_RUN_ID"); id && !id->empty()) env.job_id = *id;
  env.attempt = optional_integer(variables, "TORCHELASTIC_RESTART_COUNT", 0, 0, kMost);
  return env;
}

std::optional<RankEnvironment> rank_from_environment() {
  return rank_from_environment(environment_variable);
}

int elastic_minimum() {
  return optional_integer(environment_variable, kElasticVariable, 0, 1,
                          std::numeric_limits<int>::max());
}

bool looks_like_rank() {
  if (rank_from_environment()) return true;
  const auto mpi = net::mpi::launch_environment();
  const auto task = slurm_task();
  return (mpi && mpi->world_size != 1) || (task && task->place.world_size > 1);
}

std::optional<RankEnvironment> find_rank(comm::Transport asked, Deadline deadline) {
  const auto told = rank_from_environment();
  const auto transport = comm::transport_for(asked);
  if (transport != comm::Transport::mpi) {
    const bool by_mpi = !told && transport != comm::Transport::tcp && net::started_by_mpi();
    if (!by_mpi) return told ? told : rank_by_slurm();
  }
  const auto env = rank_in(net::mpi_world(deadline));
  if (told && (told->rank != env.rank || told->world_size != env.world_size)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("RANK and WORLD_SIZE say that this is rank {} of {}, but to MPI it is "
                            "rank {} of {}; unset RANK, or start the ranks by mpirun alone",
                            told->rank, told->world_size, env.rank, env.world_size),
                env.rank);
  }
  return env;
}

}  // namespace bimetal::launch
