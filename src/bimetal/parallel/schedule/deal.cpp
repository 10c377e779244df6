#include "bimetal/parallel/schedule/deal.h"

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::parallel::schedule {
namespace {

/// How many of `count` micro-batches each replica gets: one after the other to whom it would be
/// done first by.
std::vector<int> counts_of(const std::vector<double>& seconds, int count) {
  std::vector<int> counts(seconds.size());
  for (int dealt = 0; dealt < count; ++dealt) {
    std::size_t best = 0;
    const auto done = [&](std::size_t replica) { return (counts[replica] + 1) * seconds[replica]; };
    for (std::size_t replica = 1; replica < seconds.size(); ++replica) {
      if (done(replica) < done(best)) best = replica;
    }
    ++counts[best];
  }
  return counts;
}

/// The replicas in the order in which they get their micro-batches: each at even distances.
std::vector<int> order_of(const std::vector<int>& counts) {
  std::vector<std::pair<double, int>> places;
  for (std::size_t replica = 0; replica < counts.size(); ++replica) {
    for (int nth = 0; nth < counts[replica]; ++nth) {
      places.emplace_back((nth + 0.5) / counts[replica], static_cast<int>(replica));
    }
  }
  std::ranges::sort(places);
  std::vector<int> order;
  for (const auto& [place, replica] : places) order.push_back(replica);
  return order;
}

/// While a replica computes one micro-batch, the others begin those until its next one.
int window_of(const std::vector<int>& order) {
  int widest = 1;
  const int count = static_cast<int>(order.size());
  for (int at = 0; at < count; ++at) {
    int next = at + 1;
    while (next < count &&
           order[static_cast<std::size_t>(next)] != order[static_cast<std::size_t>(at)]) {
      ++next;
    }
    widest = std::max(widest, next - at);
  }
  return widest;
}

}  // namespace

Deal::Deal(const ReplicaSeconds& seconds, std::span<const std::int64_t> samples)
    : samples_(samples.begin(), samples.end()) {
  for (const auto& of_stage : seconds) deal_stage(of_stage);
  const bool single = std::ranges::all_of(seconds, [](const auto& all) { return all.size() == 1; });
  if (single) windows_.clear();
}

Deal::Deal(std::span<const int> widths, std::span<const std::int64_t> samples)
    : Deal(seconds_of_equals(widths), samples) {}

void Deal::deal_stage(const std::vector<double>& seconds) {
  if (seconds.empty()) {
    throw Error(ErrorCode::InvalidArgument, "a stage of a pipeline has at least one replica");
  }
  const bool known = std::ranges::all_of(seconds, [](double one) { return one > 0; });
  const auto count = std::ranges::count_if(samples_, [](auto some) { return some > 0; });
  const auto order = order_of(
      counts_of(known ? seconds : std::vector<double>(seconds.size(), 1), static_cast<int>(count)));
  auto& of_stage = of_.emplace_back();
  auto next = order.begin();
  for (const auto some : samples_) of_stage.push_back(some > 0 ? *next++ : -1);
  windows_.push_back(window_of(order));
}

std::int64_t Deal::samples(int stage, int replica) const {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    if (of_[static_cast<std::size_t>(stage)][i] == replica) sum += samples_[i];
  }
  return sum;
}

std::vector<Action> Deal::actions(Kind kind, int chunks, int stage, int replica) const {
  const Shape shape{
      .stages = stages(), .micro_batches = micro_batches(), .chunks = chunks, .windows = windows_};
  std::vector<Action> own;
  for (const auto& action : schedule(kind, stage, shape)) {
    if (this->replica(stage, action.micro_batch) == replica) own.push_back(action);
  }
  return own;
}

ReplicaSeconds seconds_of_equals(std::span<const int> widths) {
  ReplicaSeconds seconds;
  for (const auto width : widths) seconds.emplace_back(static_cast<std::size_t>(width), 1.0);
  return seconds;
}

}  // namespace bimetal::parallel::schedule
