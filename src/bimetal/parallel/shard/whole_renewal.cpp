#include "bimetal/parallel/shard/whole_renewal.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/exchange_span.h"

namespace bimetal::parallel::shard {

WholeRenewal::WholeRenewal(std::vector<Flat> renewed, const std::vector<FlatPlan>& plans,
                           std::vector<FlatParameters>& flats, comm::Group group,
                           ExchangeSpan& span, std::chrono::milliseconds timeout)
    : renewed_(std::move(renewed)),
      plans_(plans),
      flats_(flats),
      group_(std::move(group)),
      span_(span),
      timeout_(timeout) {
  expect_anew();
}

void WholeRenewal::expect_anew() {
  exchanges_.clear();
  begun_ = 0;
  left_.assign(plans_.size(), 0);
  for (const auto& flat : renewed_) left_[flat.index] = flat.pieces;
}

void WholeRenewal::updated(std::size_t index) {
  if (left_[index] > 0) --left_[index];
  while (exchanges_.size() < renewed_.size() && left_[renewed_[exchanges_.size()].index] == 0) {
    send_next(flats_[renewed_[exchanges_.size()].index].is_copied_to_bfloat16());
  }
}

/// `copied`: what the whole has of this rank's is what it keeps, in the whole's type.
void WholeRenewal::send_next(bool copied) {
  const torch::NoGradGuard no_grad;
  const auto index = renewed_[exchanges_.size()].index;
  auto& flat = flats_[index];
  flat.take_memory();
  exchanges_.push_back(gather_parts(group_, copied ? flat.own_in_whole() : flat.own(), flat.whole(),
                                    plans_[index].counts));
  begin_copied();
}

/// Those before the first whose part is still on its way to the host.
void WholeRenewal::begin_copied() {
  while (begun_ < exchanges_.size() && exchanges_[begun_].copied()) {
    exchanges_[begun_++].begin(Deadline::after(timeout_));
  }
}

void WholeRenewal::complete() {
  // Of these some pieces have not been told of: loaded, or without a gradient.
  while (exchanges_.size() < renewed_.size()) send_next(/*copied=*/false);
  while (begun_ < exchanges_.size()) exchanges_[begun_++].begin(Deadline::after(timeout_));
  for (std::size_t i = 0; i < exchanges_.size(); ++i) {
    marked_wait(
        span_.waited,
        [&] {
          return fmt::format("updated parameters of unit {}", plans_[renewed_[i].index].unit);
        },
        [&] { exchanges_[i].wait(); });
  }
  expect_anew();
}

}  // namespace bimetal::parallel::shard
