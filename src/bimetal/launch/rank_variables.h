#pragma once
// The variables by which a program learns which rank it is: those of torchrun, which torch and
// Bimetal read, and those of horovodrun. Pure.

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace bimetal::launch {

/// Variables and their values.
using NamedValues = std::vector<std::pair<std::string, std::string>>;

/// One rank's place among all. A group is the ranks of one host.
struct RankPlace {
  int rank = 0;              ///< among all
  int world_size = 1;        ///< ranks in all
  int local_rank = 0;        ///< on its host
  int local_world_size = 1;  ///< ranks of its host
  int group_rank = 0;        ///< number of the host
  int group_world_size = 1;  ///< hosts
  int cross_rank = 0;        ///< among the ranks with this local_rank, one per host
  int cross_size = 1;        ///< how many of these there are
};

/// The place of the rank that is number `local_rank` on host `host`, where host h has
/// `ranks_on_host[h]` ranks, numbered host after host.
RankPlace place_of(std::span<const int> ranks_on_host, int host, int local_rank);

/// RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE, NODE_RANK, and
/// HOROVOD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK, _CROSS_SIZE. Who serves the store at
/// MASTER_ADDR:MASTER_PORT is rank 0, and no member is there yet, whatever variables of a
/// surrounding torchrun or `bimetal launch` may say.
NamedValues rank_variables(const RankPlace& place);

/// MASTER_ADDR and MASTER_PORT.
NamedValues master_variables(const std::string& host, int port);

/// For ranks of a job that is elastic, whatever its file says: of how many members at least.
inline constexpr const char* kElasticVariable = "BIMETAL_ELASTIC";
/// Of a store on the rank's machine that outlives it: members show there who they are.
inline constexpr const char* kBoardVariable = "BIMETAL_BOARD";
/// The same, for a process that comes later, which finds members there.
inline constexpr const char* kDoorVariable = "BIMETAL_DOOR";

}  // namespace bimetal::launch
