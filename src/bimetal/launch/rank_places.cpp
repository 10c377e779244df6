#include "bimetal/launch/rank_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <exception>
#include <fstream>
#include <set>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/base/unicode/utf8.h"
#include "bimetal/launch/system/environment.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::launch {

RankPlace place_of(std::span<const int> ranks_on_host, int host, int local_rank) {
  RankPlace place;
  place.local_rank = local_rank;
  place.local_world_size = ranks_on_host[static_cast<std::size_t>(host)];
  place.group_rank = host;
  place.group_world_size = static_cast<int>(ranks_on_host.size());
  place.world_size = place.cross_size = 0;
  for (int other = 0; const int count : ranks_on_host) {
    if (other < host) place.rank += count;
    if (count > local_rank) {
      place.cross_rank += other < host;
      ++place.cross_size;
    }
    place.world_size += count;
    ++other;
  }
  place.rank += local_rank;
  return place;
}

NamedValues rank_variables(const RankPlace& place) {
  const auto text = [](int number) { return std::to_string(number); };
  return {{"RANK", text(place.rank)},
          {"WORLD_SIZE", text(place.world_size)},
          {"LOCAL_RANK", text(place.local_rank)},
          {"LOCAL_WORLD_SIZE", text(place.local_world_size)},
          {"GROUP_RANK", text(place.group_rank)},
          {"GROUP_WORLD_SIZE", text(place.group_world_size)},
          {"NODE_RANK", text(place.group_rank)},
          {"HOROVOD_RANK", text(place.rank)},
          {"HOROVOD_SIZE", text(place.world_size)},
          {"HOROVOD_LOCAL_RANK", text(place.local_rank)},
          {"HOROVOD_LOCAL_SIZE", text(place.local_world_size)},
          {"HOROVOD_CROSS_RANK", text(place.cross_rank)},
          {"HOROVOD_CROSS_SIZE", text(place.cross_size)},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {"TORCHELASTIC_RUN_ID", ""},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"BIMETAL_STORE", ""},
          {kBoardVariable, ""},
          {kDoorVariable, ""}};
}

NamedValues master_variables(const std::string& host, int port) {
  return {{"MASTER_ADDR", host}, {"MASTER_PORT", std::to_string(port)}};
}

namespace {

constexpr int kMostSlots = 65536;
constexpr std::string_view kHostBlanks = " \t\r\n";

Error not_a_host(std::string_view part, std::string_view why) {
  return {ErrorCode::InvalidArgument,
          fmt::format("\"{}\" is no host: {}; write HOST:SLOTS, as in host1:4,host2:2", part, why)};
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(kHostBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kHostBlanks) - first + 1);
}

int slot_count(std::string_view text, std::string_view part) {
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc() || end != text.data() + text.size() || slots < 1 || slots > kMostSlots) {
    throw not_a_host(part,
                     fmt::format("\"{}\" is not a number of slots from 1 to {}", text, kMostSlots));
  }
  return slots;
}

/// A host name for ssh and the resolver. A leading dash would be an option to ssh.
std::string host_name(std::string_view text, std::string_view part) {
  const auto allowed = [](unsigned char c) {
    return std::isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':' || c == '%' || c == '@';
  };
  if (text.empty()) throw not_a_host(part, "the name is missing");
  if (text.front() == '-' || text.front() == '@' || text.back() == '@' ||
      !std::all_of(text.begin(), text.end(), allowed)) {
    throw not_a_host(part, fmt::format("\"{}\" is no name or address", text));
  }
  return std::string(text);
}

/// HOST, HOST:SLOTS, [ADDRESS] or [ADDRESS]:SLOTS; an address in brackets may have colons.
HostSlots parse_host(std::string_view part) {
  const auto bracket = part.find('[');
  const auto closing = part.find(']');
  if (bracket != std::string_view::npos && closing != std::string_view::npos) {
    const auto user = part.substr(0, bracket);
    const auto rest = part.substr(closing + 1);
    if (!rest.empty() && rest.front() != ':') throw not_a_host(part, "\":SLOTS\" follows \"]\"");
    const auto address = part.substr(bracket + 1, closing - bracket - 1);
    return {host_name(std::string(user) + std::string(address), part),
            rest.empty() ? 1 : slot_count(rest.substr(1), part)};
  }
  const auto colon = part.find(':');
  if (colon == std::string_view::npos) return {host_name(part, part), 1};
  if (part.find(':', colon + 1) != std::string_view::npos) {
    throw not_a_host(part, "an IPv6 address needs brackets, as in [fd00::2]:4");
  }
  return {host_name(part.substr(0, colon), part), slot_count(part.substr(colon + 1), part)};
}

void refuse_repeats(const std::vector<HostSlots>& hosts) {
  std::set<std::string> seen;
  for (const auto& host : hosts) {
    if (seen.insert(host.name).second) continue;
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("host {} is listed twice; list it once, with all of its slots", host.name));
  }
}

/// "host1 slots=4" as "host1:4".
std::string as_list_entry(std::string_view line) {
  const auto blank = line.find_first_of(kHostBlanks);
  if (blank == std::string_view::npos) return std::string(line);
  constexpr std::string_view kSlots = "slots=";
  const auto rest = trimmed(line.substr(blank));
  if (!rest.starts_with(kSlots)) {
    throw not_a_host(line, "after the name comes \"slots=N\", or nothing");
  }
  return fmt::format("{}:{}", line.substr(0, blank), trimmed(rest.substr(kSlots.size())));
}

}  // namespace

std::vector<HostSlots> parse_host_list(std::string_view text) {
  std::vector<HostSlots> hosts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto comma = std::min(text.find(',', begin), text.size());
    hosts.push_back(parse_host(trimmed(text.substr(begin, comma - begin))));
    begin = comma + 1;
  }
  refuse_repeats(hosts);
  return hosts;
}

std::vector<HostSlots> read_host_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw system_error(fmt::format("cannot read host file {}", utf8_of_path(path)), errno);
  std::vector<HostSlots> hosts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const auto all = number == 1 ? without_byte_order_mark(line) : std::string_view(line);
    const auto text = trimmed(all.substr(0, all.find('#')));
    if (text.empty()) continue;
    try {
      hosts.push_back(parse_host(as_list_entry(text)));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}:{}: {}", utf8_of_path(path), number, error.what()));
    }
  }
  if (hosts.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("host file {} names no host; write one per line, as in "
                            "\"host1 slots=4\"",
                            utf8_of_path(path)));
  }
  refuse_repeats(hosts);
  return hosts;
}

std::vector<HostSlots> part_of_hosts(std::vector<HostSlots> hosts, std::optional<int> hosts_used,
                                     std::optional<int> ranks_each) {
  const auto used = static_cast<std::size_t>(hosts_used.value_or(static_cast<int>(hosts.size())));
  if (used > hosts.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} hosts are asked for, but {} are listed; list more of them", used,
                            hosts.size()));
  }
  hosts.resize(used);
  for (auto& host : hosts) {
    if (ranks_each.value_or(0) > host.slots) {
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("{} ranks are asked for on each host, but host {} has {} slots; "
                              "raise them, or ask for fewer",
                              *ranks_each, host.name, host.slots));
    }
    host.slots = ranks_each.value_or(host.slots);
  }
  return hosts;
}

std::vector<HostRanks> place_ranks(const std::vector<HostSlots>& hosts, std::optional<int> ranks) {
  std::int64_t slots = 0;
  for (const auto& host : hosts) slots += host.slots;
  const std::int64_t wanted = ranks.value_or(static_cast<int>(slots));
  if (wanted > slots) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} ranks are asked for, but the hosts have {} slots in all; add "
                            "hosts, or raise their slots",
                            wanted, slots));
  }
  std::vector<HostRanks> placed;
  for (int next = 0; const auto& host : hosts) {
    const int count = static_cast<int>(std::min<std::int64_t>(host.slots, wanted - next));
    if (count == 0) break;
    placed.push_back({host.name, next, count});
    next += count;
  }
  return placed;
}

std::string without_user(const std::string& host) {
  return host.substr(host.find('@') == std::string::npos ? 0 : host.find('@') + 1);
}

void leave_last_words(std::string_view where) noexcept {
  try {
    const auto board = environment_variable(kBoardVariable);
    if (!board || board->empty() || where.empty()) return;
    const auto deadline = Deadline::after(std::chrono::seconds(5));
    rendezvous::connect_store(net::parse_endpoint(*board), net::Token::from_environment(), deadline)
        ->set(kLastWordsKey, where, deadline);
  } catch (const std::exception& error) {
    log(LogLevel::info, "the launcher was not told what this job has left: {}", error.what());
  }
}

}  // namespace bimetal::launch
