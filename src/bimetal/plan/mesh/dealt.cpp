#include "bimetal/plan/mesh/dealt.h"

#include <algorithm>
#include <numeric>

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

schedule::Deal deal_of(const ByReplica& speeds, std::int64_t batch, int micro_batches) {
  auto seconds = speeds;
  for (auto& of_stage : seconds) {
    for (auto& one : of_stage) one = one > 0 ? 1 / one : schedule::kNeverSeconds;
  }
  return {seconds, schedule::micro_batch_sizes(batch, micro_batches)};
}

}  // namespace

void deal_by_speed(const ByReplica& speeds, std::int64_t batch, MeshChoice& choice) {
  const auto deal = deal_of(speeds, batch, choice.micro_batches);
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    auto& stage = choice.stages[s];
    stage.samples.clear();
    for (std::size_t r = 0; r < stage.devices.size(); ++r) {
      stage.samples.push_back(deal.samples(static_cast<int>(s), static_cast<int>(r)));
    }
  }
}

// Who has been dealt so many samples gets as many again where they stand for its speed.
schedule::Deal dealt(const MeshChoice& choice) {
  ByReplica speeds;
  for (const auto& stage : choice.stages) {
    speeds.emplace_back(stage.samples.begin(), stage.samples.end());
  }
  const auto& first = choice.stages.front().samples;
  return deal_of(speeds, std::reduce(first.begin(), first.end()), choice.micro_batches);
}

schedule::Simulation run_dealt(const MeshChoice& choice, const ByReplica& slowness,
                               std::span<const schedule::PieceCost> costs) {
  const auto deal = dealt(choice);
  std::vector<schedule::Runs> all;
  for (int s = 0; s < deal.stages(); ++s) {
    const auto& of_stage = slowness[static_cast<std::size_t>(s)];
    for (std::size_t r = 0; r < of_stage.size(); ++r) {
      all.push_back({s, deal.actions(choice.schedule, 1, s, static_cast<int>(r)), of_stage[r]});
    }
  }
  return schedule::simulate(all, deal.stages(), costs);
}

double shared_seconds(std::span<const double> each) {
  double rate = 0;
  for (const auto one : each) rate += 1 / std::max(1e-12, one);
  return 1 / rate;
}

}  // namespace bimetal::plan
