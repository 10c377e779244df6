#include "bimetal/parallel/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::parallel {
namespace {

/// This rank's one of the groups that differ in all but one of the places. `along`: that one,
/// counted up to what `count` says for a stage.
template <typename Count>
comm::Group group_along(comm::Group& world, const MeshShape& shape, int MeshPlace::*along,
                        const Count& count) {
  comm::Group mine;
  for (int first = 0; first < shape.ranks(); ++first) {
    auto place = place_of(shape, first);
    if (place.*along != 0) continue;
    std::vector<int> ranks;
    const int stage = place.stage;
    for (place.*along = 0; place.*along < count(stage); ++(place.*along)) {
      ranks.push_back(rank_at(shape, place));
    }
    if (auto group = world.subgroup(ranks)) mine = std::move(group);
  }
  return mine;
}

/// At most as many as an int has room for: no job is that large, but a job file may ask for it.
int first_rank_of(const MeshShape& shape, int stage) {
  std::int64_t ranks = 0;
  for (int s = 0; s < stage; ++s) ranks += std::int64_t{shape.replicas_of(s)} * shape.tensor_of(s);
  return static_cast<int>(std::min<std::int64_t>(ranks, std::numeric_limits<int>::max()));
}

[[noreturn]] void refuse_mesh(const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, why);
}

/// Numbers of which there is one for each stage; where all are the same they are `one`.
void take_numbers(const char* key, std::vector<int>& numbers, int stages, int& one) {
  if (numbers.empty()) return;
  if (static_cast<int>(numbers.size()) != stages) {
    refuse_mesh(
        fmt::format("{} = [{}] with mesh.stages = {}: give a number for each stage, or set "
                    "mesh.stages = {}",
                    key, fmt::join(numbers, ", "), stages, numbers.size()));
  }
  const auto [least, most] = std::ranges::minmax(numbers);
  if (least != most) return;
  one = most;
  numbers.clear();
}

std::string tensor_text(const MeshShape& shape) {
  return shape.parts.empty() ? fmt::format("mesh.tensor = {}", shape.tensor)
                             : fmt::format("mesh.tensor = [{}]", fmt::join(shape.parts, ", "));
}

/// The sum that one number of replicas for each stage must have; 0: no numbers would do.
int numbers_for(const MeshShape& asked, int ranks) {
  const bool divides = asked.parts.empty() && ranks % asked.tensor == 0;
  return divides && ranks / asked.tensor >= asked.stages ? ranks / asked.tensor : 0;
}

MeshShape fit_uneven(const MeshShape& asked, int ranks) {
  if (asked.ranks() == ranks) return asked;
  const auto sum = numbers_for(asked, ranks);
  refuse_mesh(fmt::format("mesh.replicas = [{}] need{} {} workers, and this job has {}: start {}{}",
                          fmt::join(asked.uneven, ", "),
                          asked.tensor > 1 ? " with " + tensor_text(asked) : std::string(),
                          asked.ranks(), ranks, asked.ranks(),
                          sum > 0 ? fmt::format(", or give numbers that add up to {}", sum) : ""));
}

}  // namespace

int MeshShape::ranks() const noexcept {
  return first_rank_of(*this, stages);
}

int MeshShape::pipeline_ranks() const noexcept {
  if (even()) return stages;
  return uneven.empty() ? stages * replicas : std::reduce(uneven.begin(), uneven.end());
}

MeshPlace place_of(const MeshShape& shape, int rank) {
  int stage = 0;
  while (stage + 1 < shape.stages && first_rank_of(shape, stage + 1) <= rank) ++stage;
  const int within = rank - first_rank_of(shape, stage), parts = shape.tensor_of(stage);
  return {stage, within / parts, within % parts};
}

int rank_at(const MeshShape& shape, const MeshPlace& place) {
  return first_rank_of(shape, place.stage) + place.replica * shape.tensor_of(place.stage) +
         place.tensor;
}

bool parts_talk(const MeshShape& shape, const MeshPlace& one, const MeshPlace& other) {
  const int fewer = std::min(shape.tensor_of(one.stage), shape.tensor_of(other.stage));
  return one.tensor % fewer == other.tensor % fewer;
}

std::string name_of(const MeshShape& shape, int rank) {
  const auto place = place_of(shape, rank);
  std::vector<std::string> parts;
  if (shape.stages > 1) parts.push_back(fmt::format("stage {} of {}", place.stage, shape.stages));
  if (shape.replicas_of(place.stage) > 1) {
    parts.push_back(fmt::format("replica {}", place.replica));
  }
  const int of_replica = shape.tensor_of(place.stage);
  if (of_replica > 1) parts.push_back(fmt::format("part {} of {}", place.tensor, of_replica));
  return parts.empty() ? fmt::format("rank {}", rank) : fmt::format("{}", fmt::join(parts, ", "));
}

MeshShape fit_mesh(MeshShape asked, int ranks) {
  take_numbers("mesh.replicas", asked.uneven, asked.stages, asked.replicas);
  take_numbers("mesh.tensor", asked.parts, asked.stages, asked.tensor);
  if (!asked.parts.empty()) asked.tensor = std::ranges::max(asked.parts);
  if (!asked.uneven.empty()) return fit_uneven(asked, ranks);
  auto shape = asked;
  shape.replicas = 1;
  const int each = shape.ranks();
  shape.replicas = asked.replicas > 0 ? asked.replicas : ranks / each;
  if (shape.replicas > 0 && shape.ranks() == ranks) return shape;
  const auto counts = fmt::format("mesh.stages = {} and {}", asked.stages, tensor_text(asked));
  if (asked.replicas > 0) {
    refuse_mesh(
        fmt::format("{} with mesh.replicas = {} are a mesh of {} ranks, and this job has "
                    "{}: start {} workers, or leave mesh.replicas out",
                    counts, asked.replicas, shape.ranks(), ranks, shape.ranks()));
  }
  const int fewer = ranks / each * each;
  const auto more = asked.stages > 1 && numbers_for(asked, ranks) > asked.stages
                        ? "; or mesh.replicas with a number for each stage"
                        : "";
  refuse_mesh(fmt::format(
      "{} need workers in multiples of {}, and this job has {}: {}{} would do{}", counts, each,
      ranks, fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + each, more));
}

std::string units_text(const std::vector<std::string>& names,
                       std::span<const schedule::UnitRange> pieces) {
  std::vector<std::string> numbers, ends;
  for (const auto& [first, behind] : pieces) {
    const auto last = behind - 1;
    numbers.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
    ends.push_back(first == last ? names[first]
                                 : fmt::format("{} … {}", names[first], names[last]));
  }
  return fmt::format("units {} ({})", fmt::join(numbers, ", "), fmt::join(ends, ", "));
}

std::string picture(const MeshShape& shape, const std::vector<std::string>& units) {
  std::string lines;
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<std::string> replicas;
    const int parts = shape.tensor_of(stage);
    for (int replica = 0; replica < shape.replicas_of(stage); ++replica) {
      const int first = rank_at(shape, {stage, replica, 0});
      replicas.push_back(parts == 1 ? fmt::format("[rank {}]", first)
                                    : fmt::format("[ranks {}-{}]", first, first + parts - 1));
    }
    lines += fmt::format("{}  stage {}  {}  {}", stage > 0 ? "\n" : "", stage,
                         fmt::join(replicas, " "), units[static_cast<std::size_t>(stage)]);
  }
  return lines;
}

Mesh::Mesh(comm::Group world, const MeshShape& shape)
    : shape_(shape), place_(place_of(shape, world.rank())), world_(std::move(world)) {
  if (shape_.ranks() != world_.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a mesh of {} ranks in a group of {}", shape_.ranks(), world_.size()));
  }
  pipeline_ = make_pipeline();
  replicas_ = group_along(world_, shape_, &MeshPlace::replica,
                          [this](int stage) { return shape_.replicas_of(stage); });
  tensor_ = group_along(world_, shape_, &MeshPlace::tensor,
                        [this](int stage) { return shape_.tensor_of(stage); });
}

comm::Group Mesh::make_pipeline() {
  if (shape_.even()) {
    return group_along(world_, shape_, &MeshPlace::stage, [this](int) { return shape_.stages; });
  }
  return comm::group_of_its_own(world_);
}

std::vector<int> Mesh::widths() const {
  std::vector<int> widths(static_cast<std::size_t>(shape_.stages), 1);
  for (int stage = 0; stage < shape_.stages && !shape_.even(); ++stage) {
    widths[static_cast<std::size_t>(stage)] = shape_.replicas_of(stage);
  }
  return widths;
}

std::vector<int> Mesh::windows() const {
  const auto all = widths();
  return std::ranges::max(all) > 1 ? all : std::vector<int>();
}

int Mesh::peer(int stage, int replica) const {
  if (shape_.even()) return stage;
  return rank_at(shape_, {stage, replica, place_.tensor % shape_.tensor_of(stage)});
}

std::vector<int> Mesh::receivers(int stage, int replica) const {
  if (shape_.even()) return {stage};
  std::vector<int> ranks;
  const int own_parts = shape_.tensor_of(place_.stage);
  for (int part = place_.tensor; part < shape_.tensor_of(stage); part += own_parts) {
    ranks.push_back(rank_at(shape_, {stage, replica, part}));
  }
  return ranks;
}

int Mesh::rank_of_peer(int peer) const {
  auto place = place_;
  place.stage = peer;
  return shape_.even() ? rank_at(shape_, place) : peer;
}

std::string Mesh::name_of_peer(int peer) const {
  const int rank = rank_of_peer(peer);
  return fmt::format("{} (rank {})", name_of(shape_, rank), rank);
}

std::string Mesh::own_name() const {
  return name_of_peer(pipeline_.rank());
}

}  // namespace bimetal::parallel
