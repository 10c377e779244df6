// The rescue after the loss of a rank, if zero.copies = 2 keeps each shard twice. The remaining
// ranks bring each other to the same step, and save it whole. A group's end ends all of its ranks'
// calls, so that they meet anew for it.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/train/epoch.h"

namespace bimetal::train {
namespace {

using Numbers = std::vector<double>;
using State = progress::Rescue::State;

std::vector<Numbers> gather_numbers(const Numbers& mine, const comm::Group& left,
                                    Deadline deadline) {
  std::vector<Numbers> all;
  for (const auto& bytes : comm::all_gather_bytes(left, std::as_bytes(std::span(mine)), deadline)) {
    if (bytes.size() < 2 * sizeof(double) || bytes.size() % sizeof(double) != 0) {
      throw Error(ErrorCode::CorruptData, "what a rank says of its last step makes no sense");
    }
    all.emplace_back(bytes.size() / sizeof(double));
    std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}

}  // namespace

bool Epoch::rescue(int lost, const comm::Group& left) {
  if (!trained_.store()->keeps_copies()) return false;
  run_.saving.end_group();
  observer_.on_rescue({.state = State::Saving});
  try {
    const auto busiest = go_even(left);
    trained_.require_finite(left);
    complete_state();
    const auto path = trained_.save_without(lost, left, busiest);
    run_.learnt.saved = path;
    run_.saved_step = state().step;
    if (left.rank() == 0) {
      run_.saved_path = path;
      observer_.on_rescue(
          {.state = State::Saved, .lost = lost, .step = state().step, .path = path.string()});
    }
    return true;
  } catch (const std::exception& error) {
    observer_.on_rescue({.state = State::Failed, .cause = error.what()});
    throw;
  }
}

/// Nobody updates before all have everything that the update takes, copies included. A rank that
/// has not heard so follows those that have updated. Ranks are never more than one step apart.
/// Returns which of `left` has the largest share by its own account, as shares may be a step apart,
/// too.
int Epoch::go_even(comm::Group left) {
  auto& update = step_.update();
  const auto mine = std::max(state().step, update.updated());
  const auto share = balancer_.shares()[static_cast<std::size_t>(lanes_.mine())];
  Numbers told = {static_cast<double>(mine), static_cast<double>(share)};
  const auto figures = update.agreed_numbers();
  told.insert(told.end(), figures.begin(), figures.end());
  const auto all = gather_numbers(told, left, Deadline::after(run_.timeout()));
  const auto ahead = *std::ranges::max_element(all, {}, [](const auto& one) { return one[0]; });
  const auto busiest =
      std::ranges::max_element(all, {}, [](const auto& one) { return one[1]; }) - all.begin();
  const auto last = static_cast<std::int64_t>(ahead[0]);
  if (mine < last) {
    update.catch_up(last, std::span(ahead).subspan(2), trained_.optimizer());
  }
  if (state().step != last) commit(last, current_->after);
  return static_cast<int>(busiest);
}

}  // namespace bimetal::train
