#include "bimetal/parallel/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::parallel {
namespace {

/// This rank's one of the groups that differ in all but one of the places. `along`: that one,
/// counted up.
comm::Group group_along(comm::Group& world, const MeshShape& shape, int MeshPlace::* along,
                        int count) {
  comm::Group mine;
  for (int first = 0; first < shape.ranks(); ++first) {
    auto place = place_of(shape, first);
    if (place.*along != 0) continue;
    std::vector<int> ranks;
    for (place.*along = 0; place.*along < count; ++(place.*along)) {
      ranks.push_back(rank_at(shape, place));
    }
    if (auto group = world.subgroup(ranks)) mine = std::move(group);
  }
  return mine;
}

}  // namespace

MeshPlace place_of(const MeshShape& shape, int rank) {
  const int in_stage = shape.replicas * shape.tensor;
  return {rank / in_stage, rank % in_stage / shape.tensor, rank % shape.tensor};
}

int rank_at(const MeshShape& shape, const MeshPlace& place) {
  return (place.stage * shape.replicas + place.replica) * shape.tensor + place.tensor;
}

std::string name_of(const MeshShape& shape, int rank) {
  const auto place = place_of(shape, rank);
  std::vector<std::string> parts;
  if (shape.stages > 1) parts.push_back(fmt::format("stage {} of {}", place.stage, shape.stages));
  if (shape.replicas > 1) parts.push_back(fmt::format("replica {}", place.replica));
  if (shape.tensor > 1) parts.push_back(fmt::format("part {} of {}", place.tensor, shape.tensor));
  return parts.empty() ? fmt::format("rank {}", rank) : fmt::format("{}", fmt::join(parts, ", "));
}

MeshShape fit_mesh(int stages, int replicas, int tensor, int ranks) {
  const int each = stages * tensor;
  const MeshShape shape{stages, replicas > 0 ? replicas : ranks / each, tensor};
  if (shape.replicas > 0 && shape.ranks() == ranks) return shape;
  const auto counts = fmt::format("mesh.stages = {} and mesh.tensor = {}", stages, tensor);
  if (replicas > 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} with mesh.replicas = {} are a mesh of {} ranks, and this job has "
                            "{}: start {} workers, or leave mesh.replicas out",
                            counts, replicas, shape.ranks(), ranks, shape.ranks()));
  }
  const int fewer = ranks / each * each;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("{} need workers in multiples of {}, and this job has {}: {}{} would do", counts,
                  each, ranks, fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + each));
}

std::string picture(const MeshShape& shape, const std::vector<std::string>& units) {
  std::string lines;
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<std::string> replicas;
    for (int replica = 0; replica < shape.replicas; ++replica) {
      const int first = rank_at(shape, {stage, replica, 0});
      replicas.push_back(shape.tensor == 1
                             ? fmt::format("[rank {}]", first)
                             : fmt::format("[ranks {}-{}]", first, first + shape.tensor - 1));
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
  pipeline_ = group_along(world_, shape_, &MeshPlace::stage, shape_.stages);
  replicas_ = group_along(world_, shape_, &MeshPlace::replica, shape_.replicas);
  tensor_ = group_along(world_, shape_, &MeshPlace::tensor, shape_.tensor);
}

std::string Mesh::name_of_stage(int stage) const {
  auto place = place_;
  place.stage = stage;
  const int rank = rank_at(shape_, place);
  return fmt::format("{} (rank {})", name_of(shape_, rank), rank);
}

}  // namespace bimetal::parallel
