#pragma once
// Which rank this process is when Slurm's srun has started it. docs/launching.md shows the use.

#include <optional>

#include "bimetal/launch/rank_environment.h"
#include "bimetal/launch/rank_variables.h"

namespace bimetal::launch {

/// One task of a job step.
struct SlurmTask {
  RankPlace place;
  net::Endpoint master;  ///< where rank 0 is to serve the store
  std::string job_id;    ///< of the step: no other step has it
};

/// Nothing unless srun has started this process: a batch script by itself is no task, nor is the
/// shell of an allocation. Ranks meet on the step's first node (on loopback, if it is the only one)
/// at a port made from the numbers of job and step, unless MASTER_ADDR or MASTER_PORT say
/// otherwise. Error(InvalidArgument) names a variable that is missing or makes no sense.
std::optional<SlurmTask> slurm_task(const Variables& variables);
std::optional<SlurmTask> slurm_task();

/// As a rank that finds its group by the store that rank 0 serves.
RankEnvironment rank_in(const SlurmTask& task);

}  // namespace bimetal::launch
