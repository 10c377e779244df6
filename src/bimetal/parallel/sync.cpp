#include "bimetal/parallel/sync.h"

#include <algorithm>

namespace bimetal::parallel {

void Sync::begin_step(std::int64_t weight, double scale) {
  for (const auto& sums : extra_) sums->begin_step();
  store_->begin_step(weight, scale);
}

void Sync::sum_gradients(const std::function<void()>& when_sent) {
  store_->finish_step(
      [this] {
        for (const auto& sums : extra_) sums->before_replicas();
      },
      when_sent);
  for (const auto& sums : extra_) sums->after_replicas();
}

void Sync::spread_update() {
  store_->after_update();
  for (const auto& sums : extra_) sums->after_update();
}

const comm::Group* Sync::everyone() const noexcept {
  for (const auto& sums : extra_) {
    if (const auto* const everyone = sums->everyone()) return everyone;
  }
  return nullptr;
}

progress::RankFigures Sync::as_one(const progress::RankFigures& mine) const {
  auto one = mine;
  if (everyone() != nullptr) return one;
  for (const auto& sums : extra_) one = sums->as_one(one);
  return one;
}

bool Sync::counts(const torch::Tensor& parameter) const {
  const auto facts = store_->facts_of(parameter);
  return facts.counts &&
         std::ranges::all_of(extra_, [&](const auto& sums) { return sums->counts(facts.whole); });
}

bool Sync::can_repeat() const noexcept {
  return !store_->updates_in_backward() &&
         std::ranges::all_of(extra_, [](const auto& sums) { return sums->can_repeat(); });
}

double Sync::wait_seconds() const noexcept {
  double seconds = store_->wait_seconds();
  for (const auto& sums : extra_) seconds += sums->wait_seconds();
  return seconds;
}

double Sync::communicate_seconds() const noexcept {
  double seconds = store_->communicate_seconds();
  for (const auto& sums : extra_) seconds += sums->communicate_seconds();
  return seconds;
}

double Sync::unit_seconds() const noexcept {
  double seconds = 0;
  if (everyone() != nullptr) return seconds;
  for (const auto& sums : extra_) seconds += sums->unit_seconds();
  return seconds;
}

}  // namespace bimetal::parallel
