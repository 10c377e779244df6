#include "bimetal/comm/group/all_reducer.h"

#include <numeric>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/comm/algorithms/doubling.h"
#include "bimetal/comm/algorithms/islands.h"
#include "bimetal/comm/algorithms/reduction.h"
#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/link_probe.h"

namespace bimetal::comm {
namespace {

// The first message longer than this has the links measured. A group that never sends one starts
// at once and gains little from knowing them.
constexpr std::size_t kWorthMeasuring = std::size_t{256} << 10;

}  // namespace

// Every rank comes to the same answer: from the call, from the plan that rank 0 has made for all,
// and from whether there is one, which depends on the calls before.
Algorithm AllReducer::choose(Channel& channel, std::size_t bytes) {
  if (islands_ && (asked_ == Algorithm::automatic || asked_ == Algorithm::two_level)) {
    return choose_with_islands(channel, bytes);
  }
  if (asked_ != Algorithm::automatic && asked_ != Algorithm::weighted) return asked_;
  const bool measures = asked_ == Algorithm::weighted || bytes > kWorthMeasuring;
  // Two ranks have one link between them: there is nothing to choose by.
  if (!plan_ && channel.size() > 2 && measures) {
    std::vector<int> everyone(static_cast<std::size_t>(channel.size()));
    std::iota(everyone.begin(), everyone.end(), 0);
    plan_ = agree_on_plan(channel, leaves_host_, everyone);
    log(LogLevel::info,
        "all_reduce over {} ranks: recursive doubling up to {} bytes, halving and doubling up to "
        "{}, {} for longer messages",
        channel.size(), plan_->short_bytes, plan_->middle_bytes,
        to_string(plan_->choose(~std::size_t{0})));
  }
  if (asked_ == Algorithm::weighted) return asked_;
  const auto chosen = (plan_ ? *plan_ : plan_for_one_host(channel.size())).choose(bytes);
  // Several ranks behind one host's link: inside first, if nothing better is known.
  const bool shared = hosts_.size() > 1 && hosts_.size() < static_cast<std::size_t>(channel.size());
  return shared && chosen == Algorithm::ring ? Algorithm::two_level : chosen;
}

// One rank of each island measures; two have one link between them.
Algorithm AllReducer::choose_with_islands(Channel& channel, std::size_t bytes) {
  const bool is_short = bytes <= plan_for_one_host(channel.size()).short_bytes;
  if (asked_ == Algorithm::automatic && is_short) return Algorithm::recursive_doubling;
  if (!plan_ && islands_->ranks.size() > 2 && bytes > kWorthMeasuring) {
    const auto first = first_ranks(islands_->ranks);
    plan_ = agree_on_plan(channel, leaves_host_, first);
    log(LogLevel::info, "all_reduce over {} ranks on {} islands: {} links between these",
        channel.size(), first.size(), plan_->weights.empty() ? "equal" : "unequal");
  }
  return Algorithm::two_level;
}

// As planned, or all alike.
std::vector<std::uint32_t> AllReducer::weights(std::size_t number) const {
  if (plan_ && !plan_->weights.empty()) return plan_->weights;
  return std::vector<std::uint32_t>(number, 1);
}

void AllReducer::run_two_level(Channel& channel, std::span<std::byte> data,
                               const Reduction& reduction) const {
  if (!islands_) return two_level_all_reduce(channel, data, hosts_, reduction);
  islands_all_reduce(channel, data, *islands_, weights(islands_->ranks.size()), reduction);
}

void AllReducer::run(Channel& channel, std::span<std::byte> data, const Reduction& reduction) {
  const auto chosen = choose(channel, data.size());
  channel.note_algorithm(to_string(chosen).data());  // a literal
  switch (chosen) {
    case Algorithm::recursive_doubling:
      recursive_doubling_all_reduce(channel, data, reduction.dtype, reduction.op);
      return reduction.finish(data);
    case Algorithm::halving_doubling: return halving_doubling_all_reduce(channel, data, reduction);
    case Algorithm::tree: return tree_all_reduce(channel, data, reduction);
    case Algorithm::two_level: return run_two_level(channel, data, reduction);
    case Algorithm::weighted:
      return weighted_all_reduce(channel, data, weights(static_cast<std::size_t>(channel.size())),
                                 reduction);
    case Algorithm::automatic:
    case Algorithm::ring: break;
  }
  ring_all_reduce(channel, even_segments(data, channel.size(), reduction.dtype), reduction);
}

}  // namespace bimetal::comm
