#pragma once
// Which ranks are on which host, as people write it down, and the variables by which a program
// learns which of them it is: those of torchrun, which torch and Bimetal read, and those of
// horovodrun. Pure, but for reading a host file.
//
// What a job has left behind and where, as its leading rank tells `bimetal launch` at its end: by
// the board on the rank's machine.

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/launch/system/environment.h"

namespace bimetal::launch {

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
/// HOROVOD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE, _CROSS_RANK, _CROSS_SIZE. Rank 0 serves the store
/// at MASTER_ADDR:MASTER_PORT, and no member is there yet, whatever variables of a surrounding
/// torchrun or `bimetal launch` may say.
NamedValues rank_variables(const RankPlace& place);

/// MASTER_ADDR and MASTER_PORT.
NamedValues master_variables(const std::string& host, int port);

/// For ranks of a job that is elastic, whatever its file says: of how many members at least.
inline constexpr const char* kElasticVariable = "BIMETAL_ELASTIC";
/// The address of a store on the rank's machine that outlives the rank: members show there who they
/// are.
inline constexpr const char* kBoardVariable = "BIMETAL_BOARD";
/// The same, for a process that comes later, which finds members there.
inline constexpr const char* kDoorVariable = "BIMETAL_DOOR";

// Hosts and how many ranks each of them takes, on the command line (host1:4,host2:2) or in a
// file.

/// A host, and how many ranks it takes.
struct HostSlots {
  std::string name;  ///< what ssh takes: a name or address, may begin with "user@"
  int slots = 1;     ///< ranks that it can take
};

/// "host1:4,user@host2:2,[fd00::2]:1"; a host without a number has one slot.
/// Error(InvalidArgument) shows the part that makes no sense; a host may be named once.
std::vector<HostSlots> parse_host_list(std::string_view text);

/// A host per line, as in the files of other launchers: "host1 slots=4", "host2:2" or "host3". "#"
/// begins a comment; lines may end as on Windows. Errors: InvalidArgument naming file and line;
/// System if it cannot be read.
std::vector<HostSlots> read_host_file(const std::filesystem::path& path);

/// The first `hosts_used` hosts (all, if nothing) with `ranks_each` ranks (their slots, if
/// nothing). Error(InvalidArgument) if there are too few hosts, or one has too few slots.
std::vector<HostSlots> part_of_hosts(std::vector<HostSlots> hosts, std::optional<int> hosts_used,
                                     std::optional<int> ranks_each);

/// The ranks of one host.
struct HostRanks {
  std::string name;    ///< as its HostSlots has it
  int first_rank = 0;  ///< among all; the host's others follow it
  int count = 0;       ///< of its ranks
};

/// Gives ranks 0 … `ranks`-1 (all slots, if nothing) to the hosts in their order, each filled
/// before the next. Hosts that get none are left out. Error(InvalidArgument) if there are too few
/// slots.
std::vector<HostRanks> place_ranks(const std::vector<HostSlots>& hosts, std::optional<int> ranks);

/// The name without "user@".
std::string without_user(const std::string& host);

/// The key on that board.
inline constexpr const char* kLastWordsKey = "launch/last-words";

/// `where`: "report /home/me/run.json, checkpoint /home/me/runs/first/step-00000470"; paths are
/// absolute. Does nothing where no launcher listens: nobody's job ends worse for it.
void leave_last_words(std::string_view where) noexcept;

}  // namespace bimetal::launch
