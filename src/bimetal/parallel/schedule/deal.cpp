#include "bimetal/parallel/schedule/deal.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/schedule/simulate.h"

namespace bimetal::parallel::schedule {
namespace {

using Samples = std::vector<std::int64_t>;

/// Which replica gets which micro-batch, in order, and how many samples each replica then has.
struct Order {
  std::vector<int> replicas;
  Samples given;

  void give(std::size_t replica, std::int64_t samples) {
    replicas.push_back(static_cast<int>(replica));
    given[replica] += samples;
  }
};

/// Each micro-batch to whom it would be done first by.
Order in_turn(const std::vector<double>& seconds, const Samples& pieces) {
  Order order{{}, Samples(seconds.size())};
  for (const auto piece : pieces) {
    std::size_t best = 0;
    const auto done = [&](std::size_t replica) {
      return static_cast<double>(order.given[replica] + piece) * seconds[replica];
    };
    for (std::size_t replica = 1; replica < seconds.size(); ++replica) {
      if (done(replica) < done(best)) best = replica;
    }
    order.give(best, piece);
  }
  return order;
}

/// Each replica gets its `parts` of the samples at even distances: a micro-batch goes to whom most
/// is due, among those whose part has room for it if there are any. In whole numbers, so that ranks
/// of unlike machines deal alike.
Order spread_evenly(const Samples& parts, const Samples& pieces) {
  const auto all = std::reduce(parts.begin(), parts.end());
  Order order{{}, Samples(parts.size())};
  std::int64_t before = 0;
  for (const auto piece : pieces) {
    const auto rank_of = [&](std::size_t replica) {
      const bool room = order.given[replica] + piece <= parts[replica];
      const auto due = parts[replica] * (2 * before + piece) - 2 * all * order.given[replica];
      return std::pair(room, due);
    };
    std::size_t best = 0;
    for (std::size_t replica = 1; replica < parts.size(); ++replica) {
      if (rank_of(replica) > rank_of(best)) best = replica;
    }
    order.give(best, piece);
    before += piece;
  }
  return order;
}

/// When the last replica is through.
double end_of(const Order& order, const std::vector<double>& seconds) {
  double last = 0;
  for (std::size_t replica = 0; replica < seconds.size(); ++replica) {
    last = std::max(last, static_cast<double>(order.given[replica]) * seconds[replica]);
  }
  return last;
}

/// At even distances, unless pieces of unlike size then make the last replica later.
std::vector<int> order_of(const std::vector<double>& seconds, const Samples& pieces) {
  const auto turns = in_turn(seconds, pieces);
  const auto even = spread_evenly(turns.given, pieces);
  return end_of(even, seconds) <= end_of(turns, seconds) ? even.replicas : turns.replicas;
}

/// While a replica computes one micro-batch, the others begin those until its next one. Not for
/// ever: a slow replica would have all stages before it keep the activations of half of the step.
int window_of(const std::vector<int>& order, std::size_t replicas) {
  std::size_t widest = 1;
  for (std::size_t at = 0; at < order.size(); ++at) {
    std::size_t next = at + 1;
    while (next < order.size() && order[next] != order[at]) ++next;
    widest = std::max(widest, next - at);
  }
  return static_cast<int>(std::min(widest, 2 * replicas));
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
  Samples pieces;
  std::ranges::copy_if(samples_, std::back_inserter(pieces), [](auto some) { return some > 0; });
  const auto order = order_of(known ? seconds : std::vector<double>(seconds.size(), 1), pieces);
  auto& of_stage = of_.emplace_back();
  auto next = order.begin();
  for (const auto some : samples_) of_stage.push_back(some > 0 ? *next++ : -1);
  windows_.push_back(window_of(order, seconds.size()));
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

int Deal::in_flight(Kind kind, int stage, int replica) const {
  return fullest_moments(actions(kind, 1, stage, replica), 1).front().front();
}

ReplicaSeconds seconds_of_equals(std::span<const int> widths) {
  ReplicaSeconds seconds;
  for (const auto width : widths) seconds.emplace_back(static_cast<std::size_t>(width), 1.0);
  return seconds;
}

}  // namespace bimetal::parallel::schedule
