#include "bimetal/train/pipeline/dealer.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::train {
namespace {

/// How much of what a step tells is believed: a single slow one is no reason to deal otherwise.
constexpr double kNews = 0.3;

/// By how much a replica that gets nothing is thought faster after each step, so that it is tried
/// again some time.
constexpr double kDoubt = 0.98;

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
                fmt::format("parallel.balance has {} weights: where the stages have replicas of "
                            "their own number, give one for each of the {} workers",
                            speeds.size(), shape.ranks()));
  }
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const auto [stage, replica, tensor] = parallel::place_of(shape, rank);
    const auto speed = speeds.empty() ? 0.0 : speeds[static_cast<std::size_t>(rank)];
    seconds_[static_cast<std::size_t>(stage)][static_cast<std::size_t>(replica)] =
        speed > 0 ? 1 / speed : 0;
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
  for (std::size_t rank = 0; rank < dealt_.size(); ++rank) {
    const auto place = parallel::place_of(mesh_->shape(), static_cast<int>(rank));
    auto& known =
        seconds_[static_cast<std::size_t>(place.stage)][static_cast<std::size_t>(place.replica)];
    const auto taken = figures[rank].compute_seconds;
    if (dealt_[rank] == 0) {
      known *= kDoubt;
    } else if (taken > 0) {
      const auto seen = taken / static_cast<double>(dealt_[rank]);
      known = known > 0 ? known + kNews * (seen - known) : seen;
    }
  }
}

}  // namespace bimetal::train
