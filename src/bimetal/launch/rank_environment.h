#pragma once
// Which rank this process is, as told by whatever started it: Bimetal's own launcher, torchrun, or
// any tool that sets torchrun's variables RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT. docs/running.md lists them.

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/algorithm.h"
#include "bimetal/launch/rank_places.h"
#include "bimetal/net/endpoint.h"

namespace bimetal::launch {

/// The process that serves the store at MASTER_ADDR:MASTER_PORT.
enum class StoreOwner {
  /// The process that started the ranks (BIMETAL_STORE=launcher).
  /// Torchrun: a c10d::TCPStore is there (TORCHELASTIC_USE_AGENT_STORE=True).
  /// The ranks meet through MPI, without a store (find_rank()).
  /// Server 0 of a job by parameter servers (BIMETAL_STORE=parameter_server).
  RankZero,  ///< rank 0 itself: the rule where nothing says otherwise
  Launcher,
  TorchAgent,
  Nobody,
  ParameterServer,
};

/// This process's rank, and where it meets the others.
struct RankEnvironment {
  int rank = 0;                             ///< from 0
  int world_size = 1;                       ///< ranks of the job
  int local_rank = 0;                       ///< among the ranks on this machine
  int local_world_size = 1;                 ///< ranks on this machine
  net::Endpoint master;                     ///< where the ranks find each other
  StoreOwner store = StoreOwner::RankZero;  ///< who serves the store
  std::optional<int> server;  ///< it is this parameter server (BIMETAL_SERVER), no worker
  std::string own_address;    ///< of this machine for the others (BIMETAL_ADDRESS); may be empty
  /// It comes to a job that trains already (BIMETAL_DOOR): where to ask for members; else empty.
  std::string door;
  /// Equal on all ranks of a job and on no other job's (torchrun's run id).
  std::string job_id = "job";
  int attempt = 0;  ///< how often the starter has restarted the job (torchrun)

  /// Whether every rank is on this machine, so that the job needs nothing beyond loopback.
  bool on_one_machine() const noexcept { return local_world_size == world_size; }
};

/// Value of a variable, or nothing where it is not set. Stands for the process's environment.
using Variables = std::function<std::optional<std::string>(const char* name)>;

/// Nothing if RANK is not set: this process was not started as a rank. LOCAL_RANK may be missing
/// only in a world of one; LOCAL_WORLD_SIZE may be missing (all ranks are taken to be on this
/// machine if MASTER_ADDR is a loopback address). Error(InvalidArgument) names the variable that is
/// missing or bad, and its value.
std::optional<RankEnvironment> rank_from_environment();
/// The same of these.
std::optional<RankEnvironment> rank_from_environment(const Variables& variables);

/// BIMETAL_ELASTIC: how many members the job needs at least, where whatever started its ranks lets
/// them come and go; else 0. Error(InvalidArgument) for a value that makes no sense.
int elastic_minimum();

/// Whether variables say that find_rank() will find one: MPI is not asked, which can be done but
/// once in a process's life.
bool looks_like_rank();

/// Nothing if this process was not started as a rank. RANK counts if it is set. Otherwise a process
/// that mpirun has started as one of several asks MPI, unless `asked` (or BIMETAL_TRANSPORT) is
/// tcp. Otherwise a task of srun, one of several, is the rank that Slurm says. With transport mpi,
/// MPI is asked in any case, and must agree with RANK and WORLD_SIZE if these are set. Errors:
/// those of rank_from_environment(), slurm_task() and net::mpi_world(); InvalidArgument if RANK and
/// MPI disagree.
std::optional<RankEnvironment> find_rank(comm::Transport asked, Deadline deadline);

// Which rank this process is when Slurm's srun has started it. docs/launching.md shows the use.

/// One task of a job step.
struct SlurmTask {
  RankPlace place;       ///< among all tasks of the step
  net::Endpoint master;  ///< where rank 0 is to serve the store
  std::string job_id;    ///< of the step: no other step has it
};

/// Nothing unless srun has started this process: a batch script by itself is no task, nor is the
/// shell of an allocation. Ranks meet on the step's first node (on loopback, if it is the only one)
/// at a port made from the numbers of job and step, unless MASTER_ADDR or MASTER_PORT say
/// otherwise. Error(InvalidArgument) names a variable that is missing or makes no sense.
std::optional<SlurmTask> slurm_task(const Variables& variables);
/// The Slurm task that this process is.
std::optional<SlurmTask> slurm_task();

/// As a rank that finds its group by the store that rank 0 serves.
RankEnvironment rank_in(const SlurmTask& task);

// The two compressed lists in Slurm's variables. Pure.

/// The nodes of SLURM_NODELIST and its like, in order: "node[01-03,07],gpu1" is node01, node02,
/// node03, node07 and gpu1. Numbers keep their leading zeros; several brackets in one name
/// multiply, the last one running fastest. Error(InvalidArgument) shows the text if it is not
/// well-formed.
std::vector<std::string> expand_node_list(std::string_view text);

/// Tasks on each node, from SLURM_TASKS_PER_NODE and its like: "4(x2),1" is 4, 4, 1.
std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace bimetal::launch
