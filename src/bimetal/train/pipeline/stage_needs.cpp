#include "bimetal/train/pipeline/stage_needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/train/pipeline/choose_cuts.h"

namespace bimetal::train {

std::int64_t samples_of_pipeline(const parallel::MeshShape& shape, std::int64_t global_batch) {
  const std::int64_t replicas = shape.even() ? shape.replicas : 1;
  return (global_batch + replicas - 1) / replicas;
}

StageNeeds::StageNeeds(plan::MemoryInput measured, const job::JobConfig& job,
                       const parallel::MeshShape& shape, int micro_batches)
    : measured_(std::make_shared<const plan::MemoryInput>(std::move(measured))),
      rooms_(plan::rooms_of(*measured_)),
      shape_(shape),
      kind_(parallel::schedule::kind_named(job.mesh.schedule)),
      samples_(samples_of_pipeline(shape, job.train.global_batch)),
      micro_batches_(micro_batches),
      chunks_(chunks_of(job.mesh)),
      cuts_given_(!job.mesh.cuts.empty()),
      shards_(shards_of(job.zero)) {}

const plan::RankMemory& StageNeeds::rank(int number) const {
  return measured_->ranks[static_cast<std::size_t>(number)];
}

const plan::Room& StageNeeds::room_of(int number) const {
  return rooms_[static_cast<std::size_t>(number)];
}

/// As the run weighs them: by given weights, or by memory; else, and where that is not known, all
/// alike.
std::vector<double> StageNeeds::shards_of(const job::ZeroConfig& zero) const {
  const bool by_memory = zero.shards == "memory" && zero.weights.empty();
  std::vector<double> shards, sums(static_cast<std::size_t>(shape_.stages));
  for (int number = 0; number < ranks(); ++number) {
    const auto place = parallel::place_of(shape_, number);
    const auto replica = static_cast<std::size_t>(place.replica);
    const double otherwise = by_memory ? room_of(number).device : 1;
    shards.push_back(replica < zero.weights.size() ? zero.weights[replica] : otherwise);
    sums[static_cast<std::size_t>(place.stage)] += shards.back();
  }
  for (int number = 0; number < ranks(); ++number) {
    const int stage = parallel::place_of(shape_, number).stage;
    const double sum = sums[static_cast<std::size_t>(stage)];
    auto& shard = shards[static_cast<std::size_t>(number)];
    shard = sum > 0 && std::isfinite(sum) ? shard / sum : 1.0 / shape_.replicas_of(stage);
  }
  return shards;
}

/// Nobody knows yet how fast replicas are, and so which of them has most: it is as if they were
/// equals.
plan::InFlight StageNeeds::in_flight(int stage) const {
  if (shape_.even()) {
    return plan::in_flight(
        kind_, stage,
        {.stages = shape_.stages, .micro_batches = micro_batches_, .chunks = chunks_});
  }
  std::vector<int> widths;
  for (int s = 0; s < shape_.stages; ++s) widths.push_back(shape_.replicas_of(s));
  const auto sizes = parallel::schedule::micro_batch_sizes(samples_, micro_batches_);
  const parallel::schedule::Deal deal(widths, sizes);
  int most = 0;
  for (int replica = 0; replica < shape_.replicas_of(stage); ++replica) {
    most = std::max(most, deal.in_flight(kind_, stage, replica));
  }
  return most;
}

plan::StageLoad StageNeeds::load_of(int number) const {
  const int stage = parallel::place_of(shape_, number).stage;
  auto keeping = plan::asked_of(*measured_, rank(number));
  const bool again = !recompute_.empty() && recompute_[static_cast<std::size_t>(stage)];
  if (again && rank(number).may_recompute) keeping.recomputed_at_once = 1;
  return {.replicas = static_cast<double>(shape_.replicas_of(stage)),
          .shard = shards_[static_cast<std::size_t>(number)],
          .at_once = static_cast<double>((samples_ + micro_batches_ - 1) / micro_batches_),
          .in_flight = in_flight(stage),
          .keeping = keeping,
          .bucket_bytes = rank(number).load.bucket_bytes,
          .host_is_device = rank(number).load.host_is_device};
}

parallel::schedule::FittingEnds StageNeeds::within(double part) const {
  const auto stages = static_cast<std::size_t>(shape_.stages);
  std::vector<std::vector<plan::StageDevice>> devices(stages);
  for (int number = 0; number < ranks(); ++number) {
    const auto stage = static_cast<std::size_t>(parallel::place_of(shape_, number).stage);
    devices[stage].push_back({.facts = &rank(number).facts,
                              .load = load_of(number),
                              .room = part * room_of(number).device,
                              .host_room = part * room_of(number).host});
  }
  return
      [devices = std::move(devices), facts_of = measured_](std::size_t stage, std::size_t begin) {
        return plan::fitting_ends(devices[stage], begin);
      };
}

/// The memory of its pieces together.
plan::MemoryUse StageNeeds::use_of(int number, const std::vector<std::size_t>& begins) const {
  const auto& facts = rank(number).facts;
  const auto own = parallel::schedule::pieces_of(begins, facts.units.size(), shape_.stages,
                                                 parallel::place_of(shape_, number).stage);
  return plan::stage_use(facts, own, load_of(number));
}

std::vector<plan::MemoryUse> StageNeeds::planned(const std::vector<std::size_t>& begins) const {
  std::vector<plan::MemoryUse> all;
  for (int number = 0; number < ranks(); ++number) {
    auto use = use_of(number, begins);
    use.program = rank(number).program;
    if (rank(number).load.keeps_freed) {
      use.kept = plan::kept_beside(use.model(), room_of(number).device - use.model());
    }
    all.push_back(use);
  }
  return all;
}

StageNeeds StageNeeds::recomputing(std::vector<bool> stages) const {
  auto other = *this;
  other.recompute_ = std::move(stages);
  return other;
}

StageNeeds StageNeeds::recomputing() const {
  return recomputing(std::vector<bool>(static_cast<std::size_t>(shape_.stages), true));
}

bool StageNeeds::may_recompute() const {
  return std::ranges::any_of(measured_->ranks, &plan::RankMemory::may_recompute);
}

std::vector<bool> StageNeeds::must_recompute(const std::vector<std::size_t>& begins) const {
  std::vector<bool> must(static_cast<std::size_t>(shape_.stages));
  const auto plainly = recomputing({}), again = recomputing();
  for (int number = 0; number < ranks(); ++number) {
    if (!rank(number).may_recompute) continue;
    const double needed = plainly.use_of(number, begins).model();
    if (needed <= room_of(number).device) continue;
    if (again.use_of(number, begins).model() >= needed) continue;  // the last unit alone, say
    must[static_cast<std::size_t>(parallel::place_of(shape_, number).stage)] = true;
  }
  return must;
}

StageNeeds StageNeeds::at_least() const {
  auto least = *this;
  least.micro_batches_ = static_cast<int>(
      std::clamp<std::int64_t>(samples_, micro_batches_, parallel::schedule::kMostMicroBatches));
  return least;
}

std::optional<std::string> StageNeeds::lacking(const std::vector<std::size_t>& begins) const {
  const auto least = at_least().recomputing();
  std::vector<plan::MemoryUse> uses;
  for (int number = 0; number < ranks(); ++number) uses.push_back(least.use_of(number, begins));
  const auto missing = plan::missing_room(*measured_, measured_->asked, uses);
  for (int number = 0; number < ranks(); ++number) {
    const auto& use = uses[static_cast<std::size_t>(number)];
    const auto [device, host] = missing[static_cast<std::size_t>(number)];
    const bool on_device = plan::lacks_much(use.model(), device);
    if (!on_device && !plan::lacks_much(use.host, host)) continue;
    const double bytes = on_device ? use.model() : use.host, lacks = on_device ? device : host;
    const char* const remedy =
        cuts_given_ ? "leave mesh.cuts out, so that stages are as large as memory allows, or " : "";
    const char* const again = rank(number).may_recompute ? "" : "train.recompute = \"all\", ";
    return fmt::format(
        "{}: {}, {}, needs {}{} for its units, even in micro-batches of one sample, and there is "
        "{}; {}take more stages, {}or zero.level = 1 with zero.offload_optimizer = \"disk\"",
        cuts_given_ ? "mesh.cuts does not fit" : "no cut into these stages fits", rank(number).name,
        parallel::name_of(shape_, number), plan::bytes_text(bytes),
        on_device ? "" : " of its host's memory", plan::bytes_text(bytes - lacks), remedy, again);
  }
  return std::nullopt;
}

}  // namespace bimetal::train
