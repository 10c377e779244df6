#pragma once
// Hosts and how many ranks each of them takes, as people write them down: on the command line
// (host1:4,host2:2) or in a file. Pure, but for reading the file.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace bimetal::launch {

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
  std::string name;
  int first_rank = 0;
  int count = 0;
};

/// Gives ranks 0 … `ranks`-1 (all slots, if nothing) to the hosts in their order, each filled
/// before the next. Hosts that get none are left out. Error(InvalidArgument) if there are too few
/// slots.
std::vector<HostRanks> place_ranks(const std::vector<HostSlots>& hosts, std::optional<int> ranks);

/// The name without "user@".
std::string without_user(const std::string& host);

}  // namespace bimetal::launch
