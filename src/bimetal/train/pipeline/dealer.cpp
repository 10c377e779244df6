#include "bimetal/train/pipeline/dealer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::train {
namespace {

/// The weight of a new step's figures: a single slow one is no reason to deal otherwise.
constexpr double kNews = 0.3;

/// After each step an idle replica is thought faster by this fraction, so that it is tried again
/// some time. Each trial in vain halves the fraction, because it costs a step's time.
constexpr double kDoubt = 0.02;
constexpr int kMostHalvings = 5;

double mean_of_known(const std::vector<double>& seconds) {
  double sum = 0;
  int known = 0;
  for (const auto one : seconds) {
    sum += one;
    known += one > 0 ? 1 : 0;
  }
  return known > 0 ? sum / known : 0;
}

}  // namespace

Dealer::Dealer(std::shared_ptr<const parallel::Mesh> mesh, const std::vector<double>& speeds,
               bool learns)
    : mesh_(std::move(mesh)),
      seconds_(parallel::schedule::seconds_of_equals(mesh_->widths())),
      learns_(learns && !mesh_->shape().even()) {
  const auto& shape = mesh_->shape();
  if (shape.even()) return;
  if (!speeds.empty() && speeds.size() != static_cast<std::size_t>(shape.ranks())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("parallel.balance has {} weights: where the stages have replicas or "
                            "parts of their own number, give one for each of the {} workers",
                            speeds.size(), shape.ranks()));
  }
  // A measured 0 is unknown. A weight of 0 means no share.
  const bool weights = !learns && !speeds.empty();
  const double without = weights ? parallel::schedule::kNeverSeconds : 0;
  for (const int first : first_ranks()) {
    const auto parts = shape.tensor_of(parallel::place_of(shape, first).stage);
    double speed = 0;
    for (int part = 0; part < parts && !speeds.empty(); ++part) {
      speed += speeds[static_cast<std::size_t>(first + part)];
    }
    seconds_of(first) = speed > 0 ? 1 / speed : without;
  }
  if (weights) require_weights();
}

/// One rank of each replica.
std::vector<int> Dealer::first_ranks() const {
  const auto& shape = mesh_->shape();
  std::vector<int> ranks;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    if (parallel::place_of(shape, rank).tensor == 0) ranks.push_back(rank);
  }
  return ranks;
}

double& Dealer::seconds_of(int rank) {
  const auto place = parallel::place_of(mesh_->shape(), rank);
  return seconds_[static_cast<std::size_t>(place.stage)][static_cast<std::size_t>(place.replica)];
}

void Dealer::require_weights() const {
  const auto& shape = mesh_->shape();
  for (int stage = 0; stage < shape.stages; ++stage) {
    const auto& of_stage = seconds_[static_cast<std::size_t>(stage)];
    if (std::ranges::min(of_stage) < parallel::schedule::kNeverSeconds) continue;
    const int first = parallel::rank_at(shape, {stage, 0, 0});
    const int last = first + shape.replicas_of(stage) * shape.tensor_of(stage) - 1;
    const auto ranks = first == last ? fmt::format("rank {}", first)
                                     : fmt::format("one of ranks {} to {}", first, last);
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("parallel.balance leaves stage {} of {} to nobody: give {} a weight "
                            "above 0",
                            stage, shape.stages, ranks));
  }
}

parallel::schedule::Deal Dealer::spread(std::span<const std::int64_t> samples) const {
  return {seconds_, samples};
}

parallel::schedule::Deal Dealer::deal(std::span<const std::int64_t> samples) {
  auto dealt = spread(samples);
  dealt_.clear();
  for (int rank = 0; learns_ && rank < mesh_->shape().ranks(); ++rank) {
    const auto place = parallel::place_of(mesh_->shape(), rank);
    dealt_.push_back(dealt.samples(place.stage, place.replica));
  }
  return dealt;
}

void Dealer::learn(std::span<const progress::RankFigures> figures) {
  trials_.resize(dealt_.size());
  if (dealt_.empty()) return;
  const auto firsts = first_ranks();
  for (const int first : firsts) {
    const auto dealt = dealt_[static_cast<std::size_t>(first)];
    const auto stage = parallel::place_of(mesh_->shape(), first).stage;
    double taken = 0;
    for (int part = 0; part < mesh_->shape().tensor_of(stage); ++part) {
      taken = std::max(taken, figures[static_cast<std::size_t>(first + part)].compute_seconds);
    }
    if (dealt > 0 && taken > 0) learn_of(first, taken / static_cast<double>(dealt));
  }
  for (const int first : firsts) {
    if (dealt_[static_cast<std::size_t>(first)] == 0) doubt(first);
  }
}

void Dealer::learn_of(int rank, double seen) {
  auto& known = seconds_of(rank);
  auto& trial = trials_[static_cast<std::size_t>(rank)];
  if (trial.idle) {
    known = seen;
    trial.in_vain = std::min(trial.in_vain + 1, kMostHalvings);  // until it gets something again
  } else {
    known = known > 0 ? std::fma(kNews, seen - known, known) : seen;  // as on any machine
    trial.in_vain = 0;
  }
  trial.idle = false;
}

void Dealer::doubt(int rank) {
  auto& known = seconds_of(rank);
  auto& trial = trials_[static_cast<std::size_t>(rank)];
  trial.idle = true;
  if (known > 0) {
    known *= 1 - kDoubt / (1 << trial.in_vain);
  } else {
    const auto stage = parallel::place_of(mesh_->shape(), rank).stage;
    known = mean_of_known(seconds_[static_cast<std::size_t>(stage)]);
  }
}

}  // namespace bimetal::train
