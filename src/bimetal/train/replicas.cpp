#include "bimetal/train/replicas.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/train/choose_precision.h"

namespace bimetal::train {

namespace {

[[noreturn]] void refuse_weights(const job::MeshConfig& mesh, const parallel::MeshShape& shape,
                                 int stage) {
  const auto count = mesh.tensor_weights.size();
  if (shape.parts.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("mesh.tensor_weights has {} weights for mesh.tensor = {} ranks: give "
                            "one for each",
                            count, shape.tensor));
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("mesh.tensor_weights has {} weights, and stage {} of {} has {} ranks "
                          "(mesh.tensor = [{}]): weights are for stages with equally many, beside "
                          "such with one; take \"equal\" or \"speed\"",
                          count, stage, shape.stages, shape.tensor_of(stage),
                          fmt::join(shape.parts, ", ")));
}

/// The joint speed of the ranks with each part of stage `stage`. Parts are alike in all replicas,
/// whose gradients are summed. If stages have the same number of parts, they are alike on all
/// stages, of which several may have a tensor in common.
std::vector<double> speeds_of_parts(const parallel::MeshShape& shape, int stage,
                                    std::span<const double> alone) {
  std::vector<double> speeds(static_cast<std::size_t>(shape.tensor_of(stage)), 0.0);
  for (std::size_t rank = 0; rank < alone.size(); ++rank) {
    const auto place = parallel::place_of(shape, static_cast<int>(rank));
    if (!shape.parts.empty() && place.stage != stage) continue;
    speeds[static_cast<std::size_t>(place.tensor)] += alone[rank];
  }
  return speeds;
}

std::vector<double> weights_of_stage(const job::MeshConfig& mesh, const parallel::MeshShape& shape,
                                     int stage, std::span<const double> alone) {
  const auto parts = static_cast<std::size_t>(shape.tensor_of(stage));
  const bool one_of_several = parts == 1 && shape.tensor > 1;
  if (!mesh.tensor_weights.empty() && !one_of_several) {
    if (mesh.tensor_weights.size() != parts) refuse_weights(mesh, shape, stage);
    return mesh.tensor_weights;
  }
  std::vector<double> weights(parts, 1.0);
  if (mesh.tensor_parts != "speed") return weights;
  auto speeds = speeds_of_parts(shape, stage, alone);
  const bool known = std::ranges::all_of(speeds, [](double speed) { return speed > 0; });
  return known ? speeds : weights;
}

}  // namespace

void require_counts(const job::JobConfig& job, int ranks) {
  if (const auto least = job.elastic.min_workers; least > ranks) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("elastic.min_workers = {}, and this job begins with {}: start as many "
                            "workers, or set it to {} at most",
                            least, ranks, ranks));
  }
  if (job::is_open(job.mesh) || job.parallel.mode == "server") return;
  const auto shape = shape_of(job.mesh, ranks);
  part_weights(job.mesh, shape, {});
  const bool meshed = shape.stages * shape.tensor > 1;
  const char* const whom = meshed ? "replicas of a mesh" : "ranks";
  const auto replicas = static_cast<std::size_t>(shape.replicas);
  const auto balance = job.parallel.weights.size();
  const auto require = [](bool right, const std::string& why) {
    if (!right) throw Error(ErrorCode::InvalidArgument, why);
  };
  require(!shape.even() || balance == 0 || balance == replicas,
          fmt::format("parallel.balance has {} weights for {} {}: give one for each", balance,
                      replicas, whom));
  require(shape.even() || balance == 0 || balance == static_cast<std::size_t>(ranks),
          fmt::format("parallel.balance has {} weights: where the stages have replicas or parts of "
                      "their own number, give one for each of the {} workers",
                      balance, ranks));
  require(job.zero.weights.empty() || job.zero.weights.size() == replicas,
          fmt::format("zero.shards has {} weights for {} {}: give one for each",
                      job.zero.weights.size(), replicas, whom));
  const auto chunks = job.mesh.schedule == "interleaved" ? job.mesh.chunks : 1;
  const auto pieces = static_cast<std::size_t>(job.mesh.stages * chunks);
  require(job.mesh.cuts.empty() || job.mesh.cuts.size() + 1 == pieces,
          fmt::format("mesh.cuts has {} units for {} pieces of the model: give the {} units at "
                      "which those but the first begin, or none",
                      job.mesh.cuts.size(), pieces, pieces - 1));
}

std::shared_ptr<const parallel::Mesh> make_mesh(comm::Group world, const job::MeshConfig& mesh) {
  const auto shape = shape_of(mesh, world.size());
  if (shape.stages * shape.tensor == 1) return nullptr;
  return std::make_shared<const parallel::Mesh>(std::move(world), shape);
}

Replicas::Replicas(comm::Group world, std::shared_ptr<const parallel::Mesh> mesh)
    : world_(std::move(world)) {
  if (mesh && mesh->shape().stages == 1) mesh_ = std::move(mesh);
}

std::vector<int> Replicas::ranks_of(int replica) const {
  if (!in_parts()) return {replica};
  std::vector<int> ranks;
  for (int part = 0; part < mesh_->shape().tensor; ++part) {
    ranks.push_back(parallel::rank_at(mesh_->shape(), {0, replica, part}));
  }
  return ranks;
}

std::vector<balance::Device> Replicas::devices(const std::vector<balance::Device>& of_ranks) const {
  if (!in_parts()) return of_ranks;
  const auto& shape = mesh_->shape();
  std::vector<balance::Device> devices(static_cast<std::size_t>(shape.replicas));
  for (int replica = 0; replica < shape.replicas; ++replica) {
    double alpha = 0, rate = 0;
    bool known = true;
    for (int part = 0; part < shape.tensor; ++part) {
      const auto rank = static_cast<std::size_t>(parallel::rank_at(shape, {0, replica, part}));
      const auto& cost = of_ranks[rank].cost;
      known = known && cost.known() && cost.beta() > 0;
      if (!known) break;
      alpha = std::max(alpha, cost.alpha());
      rate += 1 / cost.beta();
    }
    if (known) devices[static_cast<std::size_t>(replica)].cost = {alpha, 1 / rate};
  }
  return devices;
}

std::vector<double> Replicas::of_this_part(std::span<const double> of_ranks) const {
  if (!in_parts()) return {of_ranks.begin(), of_ranks.end()};
  if (of_ranks.size() != static_cast<std::size_t>(world_.size())) return {};
  const auto& shape = mesh_->shape();
  std::vector<double> own;
  for (int replica = 0; replica < shape.replicas; ++replica) {
    const int rank = parallel::rank_at(shape, {0, replica, mesh_->place().tensor});
    own.push_back(of_ranks[static_cast<std::size_t>(rank)]);
  }
  return own;
}

std::vector<progress::WorkerPlace> Replicas::places(const progress::WorkerPlace& mine,
                                                    std::chrono::milliseconds timeout) const {
  const auto width = mesh_ ? static_cast<std::size_t>(mesh_->shape().tensor) : 1;
  std::vector<progress::WorkerPlace> places;
  std::size_t rank = 0;
  for (auto& added :
       progress::gather_summaries(world_, {.host = mine.host, .device = mine.device}, timeout)) {
    if (rank++ % width == 0) {
      places.push_back({std::move(added.host), std::move(added.device)});
      continue;
    }
    auto& place = places.back();
    if (added.host != place.host) place.host += " + " + added.host;
    place.device += " + " + added.device;
  }
  return places;
}

parallel::PartWeights part_weights(const job::MeshConfig& mesh, const parallel::MeshShape& shape,
                                   std::span<const double> alone) {
  parallel::PartWeights weights;
  for (int stage = 0; stage < shape.stages; ++stage) {
    weights.push_back(weights_of_stage(mesh, shape, stage, alone));
  }
  return weights;
}

std::optional<std::string> Replicas::advice(std::span<const double> alone, double rate) const {
  if (!in_parts() || alone.empty()) return std::nullopt;
  const auto fastest = std::ranges::max_element(alone);
  if (*fastest <= rate) return std::nullopt;
  return fmt::format(
      "with its tensors in parts the job did {:.0f} a second; before it, the whole model on rank "
      "{} "
      "alone did {:.0f}: where it fits, leave mesh.tensor out",
      rate, fastest - alone.begin(), *fastest);
}

void require_one_precision(const parallel::Mesh* mesh, precision::Precision mine,
                           Deadline deadline) {
  if (mesh == nullptr || mesh->shape().tensor == 1) return;
  const bool here = all_in_one_precision(mesh->tensor(), mine, deadline);
  std::array<std::int64_t, 1> everywhere = {here ? 1 : 0};
  auto world = mesh->world();
  world.all_reduce(comm::buffer(std::span(everywhere)), comm::ReduceOp::min, deadline).wait();
  if (everywhere[0] != 0) return;
  throw Error(
      ErrorCode::Unsupported,
      "mesh.tensor: the ranks of a replica compute in different precisions, and add up what "
      "they compute: give them the same, or set train.precision to \"float32\" or \"bfloat16\" "
      "instead of \"auto\"");
}

namespace {

/// The part of `weight` that belongs to `number` of `all`.
std::int64_t even_part(std::int64_t weight, int number, int all) {
  return weight * (number + 1) / all - weight * number / all;
}

}  // namespace

Lanes::Lanes(const parallel::MeshShape& shape, int rank) : shape_(shape), rank_(rank) {}

std::int64_t Lanes::counted(std::int64_t weight) const {
  const auto place = parallel::place_of(shape_, rank_);
  if (!shape_.even()) {
    const int parts = shape_.tensor_of(place.stage);
    return even_part(even_part(weight, place.stage, shape_.stages),
                     place.replica * parts + place.tensor, shape_.replicas_of(place.stage) * parts);
  }
  return even_part(weight, place.stage * shape_.tensor + place.tensor, ranks() / count());
}

std::vector<std::int64_t> Lanes::by_rank(const std::vector<std::int64_t>& by_lane) const {
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < ranks(); ++rank) {
    all.push_back(by_lane[static_cast<std::size_t>(of(rank))]);
  }
  return all;
}

std::vector<balance::StepFigures> Lanes::learnt(
    std::span<const progress::RankFigures> figures) const {
  std::vector<balance::StepFigures> lanes(static_cast<std::size_t>(count()));
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto& told = figures[static_cast<std::size_t>(rank)];
    auto& lane = lanes[static_cast<std::size_t>(of(rank))];
    lane.batch += told.batch;
    lane.compute_seconds = std::max(lane.compute_seconds, told.compute_seconds);
    lane.out_of_memory = lane.out_of_memory || told.fit == progress::Fit::too_large;
    if (shared()) continue;
    lane.shadow_batch = told.shadow.batch;
    lane.shadow_seconds = told.shadow.seconds;
  }
  return lanes;
}

}  // namespace bimetal::train
