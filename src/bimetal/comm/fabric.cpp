#include "bimetal/comm/fabric.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "bimetal/base/log.h"
#include "bimetal/base/unicode/utf8.h"

namespace bimetal::comm {

const std::vector<int>& island_of(const std::vector<std::vector<int>>& islands, int rank) {
  return *std::ranges::find_if(
      islands, [&](const auto& island) { return std::ranges::find(island, rank) != island.end(); });
}

std::vector<int> first_ranks(const std::vector<std::vector<int>>& islands) {
  std::vector<int> first;
  for (const auto& island : islands) first.push_back(island.front());
  return first;
}

Topology Topology::from(const std::vector<std::vector<bool>>& sees) {
  const int size = static_cast<int>(sees.size());
  const auto company_of = [&](int rank) {
    std::vector<int> company;
    for (int other = 0; other < size; ++other) {
      if (other == rank || (sees[rank][other] && sees[other][rank])) company.push_back(other);
    }
    return company;
  };
  Topology topology;
  std::vector<bool> placed(size);
  for (int rank = 0; rank < size; ++rank) {
    if (placed[rank]) continue;
    auto island = company_of(rank);
    const bool agreed =
        std::ranges::all_of(island, [&](int other) { return company_of(other) == island; });
    if (!agreed) island = {rank};
    for (const int member : island) placed[member] = true;
    topology.islands.push_back(std::move(island));
  }
  return topology;
}

namespace {

// Half of the 32 bits of a group's id for the rank, half for its count.
constexpr std::uint32_t kMaxCount = 1u << 16;

std::string place_from_environment() {
  return utf8_of_path(path_in_environment("BIMETAL_FLIGHT_RECORDER"));
}

std::string peers_of(const net::Mesh& mesh) {
  std::string text;
  for (int peer = 0; peer < mesh.size(); ++peer) {
    if (peer == mesh.rank()) continue;
    text += fmt::format("{} rank {} on {}", text.empty() ? ":" : ",", peer, mesh.host_of(peer));
  }
  return text;
}

}  // namespace

Fabric::Fabric(std::unique_ptr<net::Mesh> mesh, const std::string& flight_recorder,
               std::uint32_t epoch)
    : mesh_(std::move(mesh)),
      mailbox_(*mesh_),
      recorder_(mesh_->rank(), mesh_->size(),
                FlightRecorder::file_for(
                    flight_recorder.empty() ? place_from_environment() : flight_recorder,
                    mesh_->rank(), epoch)) {
  // Its thread starts with the first alarm: now, when a system that refuses one is an error, and
  // not when a group fails, on a thread that has nobody to tell.
  if (mesh_->size() > 1) timer_.at(Deadline::at(Deadline::Clock::now()), [] {});
  mesh_->start(mailbox_);
  log(LogLevel::info, "rank {} is one of {} in this job{}", mesh_->rank(), mesh_->size(),
      peers_of(*mesh_));
}

Fabric::~Fabric() {
  // The mesh's thread sets alarms and the timer's thread sends: both end before either is gone.
  mesh_->close(Deadline::at(Deadline::Clock::now()));
  timer_.stop();
}

std::uint32_t Fabric::new_group_id() {
  std::lock_guard lock(mutex_);
  const auto rank = static_cast<std::uint32_t>(mesh_->rank());
  if (rank >= kMaxCount || ++group_ids_ >= kMaxCount) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("rank {} can't make more than {} groups in one job", rank, kMaxCount));
  }
  return rank * kMaxCount + group_ids_;
}

void Fabric::open_group() {
  std::lock_guard lock(mutex_);
  ++open_groups_;
}

void Fabric::close_group(Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (--open_groups_ > 0) return;
  }
  mesh_->close(deadline);
}

std::string_view to_string(Transport transport) noexcept {
  switch (transport) {
    case Transport::automatic: return "auto";
    case Transport::tcp: return "tcp";
    case Transport::shm: return "shm";
    case Transport::mpi: return "mpi";
  }
  return "unknown transport";
}

Transport transport_for(Transport asked) {
  const char* variable = std::getenv("BIMETAL_TRANSPORT");
  if (asked != Transport::automatic || !variable || !*variable) return asked;
  return transport_of(variable, "BIMETAL_TRANSPORT");
}

Transport transport_of(std::string_view name, std::string_view where) {
  for (const auto transport :
       {Transport::automatic, Transport::tcp, Transport::shm, Transport::mpi}) {
    if (name == to_string(transport)) return transport;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} is '{}'; it must be auto, tcp, shm or mpi", where, name));
}

std::string island_for(std::string asked) {
  const char* variable = std::getenv("BIMETAL_ISLAND");
  return asked.empty() && variable ? variable : asked;
}

}  // namespace bimetal::comm
