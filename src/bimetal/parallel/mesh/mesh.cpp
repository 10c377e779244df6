#include "bimetal/parallel/mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "bimetal/base/error.h"

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

/// Of all stages before `stage`.
int replicas_before(const MeshShape& shape, int stage) {
  if (shape.even()) return stage * shape.replicas;
  return std::reduce(shape.uneven.begin(), shape.uneven.begin() + stage);
}

[[noreturn]] void refuse_mesh(const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, why);
}

MeshShape fit_uneven(MeshShape asked, int ranks) {
  const auto text = fmt::format("mesh.replicas = [{}]", fmt::join(asked.uneven, ", "));
  if (static_cast<int>(asked.uneven.size()) != asked.stages) {
    refuse_mesh(
        fmt::format("{} with mesh.stages = {}: give a number for each stage, or set "
                    "mesh.stages = {}",
                    text, asked.stages, asked.uneven.size()));
  }
  if (std::ranges::min(asked.uneven) == std::ranges::max(asked.uneven)) {
    asked.replicas = asked.uneven.front();
    asked.uneven.clear();
  }
  if (asked.ranks() == ranks) return asked;
  const int lines = ranks / asked.tensor;
  const bool possible = ranks % asked.tensor == 0 && lines >= asked.stages;
  refuse_mesh(
      fmt::format("{} need{} {} workers, and this job has {}: start {}{}", text,
                  asked.tensor > 1 ? fmt::format(" with mesh.tensor = {}", asked.tensor) : "",
                  asked.ranks(), ranks, asked.ranks(),
                  possible ? fmt::format(", or give numbers that add up to {}", lines) : ""));
}

}  // namespace

int MeshShape::ranks() const noexcept {
  return (even() ? stages * replicas : std::reduce(uneven.begin(), uneven.end())) * tensor;
}

MeshPlace place_of(const MeshShape& shape, int rank) {
  const int line = rank / shape.tensor;
  int stage = 0;
  while (stage + 1 < shape.stages && replicas_before(shape, stage + 1) <= line) ++stage;
  return {stage, line - replicas_before(shape, stage), rank % shape.tensor};
}

int rank_at(const MeshShape& shape, const MeshPlace& place) {
  return (replicas_before(shape, place.stage) + place.replica) * shape.tensor + place.tensor;
}

std::string name_of(const MeshShape& shape, int rank) {
  const auto place = place_of(shape, rank);
  std::vector<std::string> parts;
  if (shape.stages > 1) parts.push_back(fmt::format("stage {} of {}", place.stage, shape.stages));
  if (shape.replicas_of(place.stage) > 1) {
    parts.push_back(fmt::format("replica {}", place.replica));
  }
  if (shape.tensor > 1) parts.push_back(fmt::format("part {} of {}", place.tensor, shape.tensor));
  return parts.empty() ? fmt::format("rank {}", rank) : fmt::format("{}", fmt::join(parts, ", "));
}

MeshShape fit_mesh(MeshShape asked, int ranks) {
  if (!asked.even()) return fit_uneven(std::move(asked), ranks);
  const auto [stages, replicas, tensor, uneven] = asked;
  const int each = stages * tensor;
  const MeshShape shape{stages, replicas > 0 ? replicas : ranks / each, tensor};
  if (shape.replicas > 0 && shape.ranks() == ranks) return shape;
  const auto counts = fmt::format("mesh.stages = {} and mesh.tensor = {}", stages, tensor);
  if (replicas > 0) {
    refuse_mesh(
        fmt::format("{} with mesh.replicas = {} are a mesh of {} ranks, and this job has "
                    "{}: start {} workers, or leave mesh.replicas out",
                    counts, replicas, shape.ranks(), ranks, shape.ranks()));
  }
  const int fewer = ranks / each * each;
  const auto more = stages > 1 && ranks > stages && tensor == 1
                        ? "; or mesh.replicas with a number for each stage"
                        : "";
  refuse_mesh(fmt::format(
      "{} need workers in multiples of {}, and this job has {}: {}{} would do{}", counts, each,
      ranks, fewer > 0 ? fmt::format("{} or ", fewer) : "", fewer + each, more));
}

std::string picture(const MeshShape& shape, const std::vector<std::string>& units) {
  std::string lines;
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<std::string> replicas;
    for (int replica = 0; replica < shape.replicas_of(stage); ++replica) {
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
  if (!shape_.even() && shape_.tensor > 1) {
    refuse_mesh("stages with replicas of their own number have no tensors in parts");
  }
  pipeline_ = make_pipeline();
  replicas_ = group_along(world_, shape_, &MeshPlace::replica,
                          [this](int stage) { return shape_.replicas_of(stage); });
  tensor_ = group_along(world_, shape_, &MeshPlace::tensor, [this](int) { return shape_.tensor; });
}

comm::Group Mesh::make_pipeline() {
  if (shape_.even()) {
    return group_along(world_, shape_, &MeshPlace::stage, [this](int) { return shape_.stages; });
  }
  std::vector<int> everyone(static_cast<std::size_t>(world_.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  return world_.subgroup(everyone);
}

std::vector<int> Mesh::widths() const {
  if (!shape_.even()) return shape_.uneven;
  return std::vector<int>(static_cast<std::size_t>(shape_.stages), 1);
}

int Mesh::peer(int stage, int replica) const {
  return shape_.even() ? stage : rank_at(shape_, {stage, replica, 0});
}

std::string Mesh::name_of_peer(int peer) const {
  auto place = place_;
  place.stage = peer;
  const int rank = shape_.even() ? rank_at(shape_, place) : peer;
  return fmt::format("{} (rank {})", name_of(shape_, rank), rank);
}

std::string Mesh::own_name() const {
  return name_of_peer(pipeline_.rank());
}

}  // namespace bimetal::parallel
