#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"
#include "bimetal/launch/meet.h"
#include "bimetal/launch/port_check.h"
#include "bimetal/net/advertise.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/mpi/mpi_mesh.h"
#include "bimetal/net/token.h"

namespace bimetal::launch {
namespace {

constexpr std::size_t kTextBytes = 1024;
using Text = std::array<char, kTextBytes>;

comm::GroupOptions by_messages() {
  comm::GroupOptions options;
  options.transport = comm::Transport::mpi;
  return options;
}

/// The hosts of all ranks, by rank.
std::vector<std::string> hosts_of_ranks(const net::Mesh& mesh) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < mesh.size(); ++rank) hosts.push_back(mesh.host_of(rank));
  return hosts;
}

RankPlace place_among(const net::MpiWorld& world, const std::vector<std::string>& hosts) {
  // Hosts are numbered in the order of their first ranks.
  std::map<std::string, int> numbers;
  std::vector<int> counts;
  for (const auto& host : hosts) {
    const auto [found, is_new] = numbers.emplace(host, static_cast<int>(counts.size()));
    if (is_new) counts.push_back(0);
    ++counts[static_cast<std::size_t>(found->second)];
  }
  const auto& own = hosts[static_cast<std::size_t>(world.rank)];
  auto place = place_of(counts, numbers.at(own), world.local_rank);
  place.rank = world.rank;  // mpirun may deal ranks out to the hosts in turn
  return place;
}

std::string address_for_others() {
  if (const char* chosen = std::getenv("MASTER_ADDR"); chosen && *chosen) return chosen;
  const auto interfaces = net::interfaces_from_environment();
  return net::addresses_to_advertise(interfaces, net::reachable_address("0.0.0.0"),
                                     net::own_addresses())
      .front();
}

std::uint16_t chosen_port() {
  const char* text = std::getenv("MASTER_PORT");
  if (text == nullptr || *text == '\0') return 0;
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), port);
  if (error == std::errc() && *end == '\0' && port > 0) return port;
  throw Error(ErrorCode::InvalidArgument, fmt::format("MASTER_PORT={} is no port", text));
}

/// Rank 0's word to the others: address, port, token, or their fault.
std::string invitation(const RankPlace& place) {
  const bool alone = place.local_world_size == place.world_size;
  try {
    const auto host = alone ? std::string("127.0.0.1") : address_for_others();
    const HeldPort held({host, chosen_port()});
    const auto own = net::Token::from_environment();
    const auto token = own.empty() ? net::Token::generate() : own;
    return fmt::format("ok\n{}\n{}\n{}", host, held.port(), token.text());
  } catch (const Error& error) {
    return fmt::format("{}\n{}", static_cast<int>(error.code()), error.what());
  }
}

std::vector<std::string> lines_of(const char* text) {
  std::vector<std::string> lines(1);
  for (; *text != '\0'; ++text) {
    if (*text == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += *text;
    }
  }
  return lines;
}

}  // namespace

NamedValues meet_by_mpi(Deadline deadline) {
  const auto world = net::mpi_world(deadline);
  auto mesh = net::make_mpi_mesh(deadline);
  const auto place = place_among(world, hosts_of_ranks(*mesh));
  auto group = comm::make_group(std::move(mesh), by_messages());
  Text text{};
  if (world.rank == 0) {
    const auto words = invitation(place);
    std::copy_n(words.data(), std::min(words.size(), text.size() - 1), text.data());
  }
  group.broadcast({text.data(), text.size(), comm::DType::uint8}, 0, deadline).wait();
  group.barrier(deadline).wait();
  group.close(deadline);
  const auto lines = lines_of(text.data());
  if (lines.front() != "ok" || lines.size() < 4) {
    throw Error(ErrorCode::System, lines.size() > 1 ? "rank 0: " + lines[1] : "rank 0 is silent",
                0);
  }
  auto variables = rank_variables(place);
  const auto master = master_variables(lines[1], std::atoi(lines[2].c_str()));
  variables.insert(variables.end(), master.begin(), master.end());
  variables.insert(variables.end(), {{"BIMETAL_TOKEN", lines[3]}, {"BIMETAL_TOKEN_FILE", ""}});
  return variables;
}

}  // namespace bimetal::launch
