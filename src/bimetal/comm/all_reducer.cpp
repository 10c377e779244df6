#include "bimetal/comm/all_reducer.h"

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/comm/algorithms/halving_doubling.h"
#include "bimetal/comm/algorithms/recursive_doubling.h"
#include "bimetal/comm/algorithms/ring.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/algorithms/two_level.h"
#include "bimetal/comm/algorithms/weighted.h"
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
  if (asked_ != Algorithm::automatic && asked_ != Algorithm::weighted) return asked_;
  const bool measures = asked_ == Algorithm::weighted || bytes > kWorthMeasuring;
  // Two ranks have one link between them: there is nothing to choose by.
  if (!plan_ && channel.size() > 2 && measures) {
    plan_ = agree_on_plan(channel, leaves_host_);
    log(LogLevel::info,
        "all_reduce over {} ranks: recursive doubling up to {} bytes, halving and doubling up to "
        "{}, {} for longer messages",
        channel.size(), plan_->short_bytes, plan_->middle_bytes,
        to_string(plan_->choose(~std::size_t{0})));
  }
  if (asked_ == Algorithm::weighted) return asked_;
  const auto chosen = (plan_ ? *plan_ : plan_for_one_host(channel.size())).choose(bytes);
  // Several ranks behind one host's link: inside first, if nothing better is known.
  const bool hosts =
      islands_.size() > 1 && islands_.size() < static_cast<std::size_t>(channel.size());
  return hosts && chosen == Algorithm::ring ? Algorithm::two_level : chosen;
}

void AllReducer::run(Channel& channel, std::span<std::byte> data, const Reduction& reduction) {
  switch (choose(channel, data.size())) {
    case Algorithm::recursive_doubling:
      recursive_doubling_all_reduce(channel, data, reduction.dtype, reduction.op);
      return reduction.finish(data);
    case Algorithm::halving_doubling: return halving_doubling_all_reduce(channel, data, reduction);
    case Algorithm::tree: return tree_all_reduce(channel, data, reduction);
    case Algorithm::two_level: return two_level_all_reduce(channel, data, islands_, reduction);
    case Algorithm::weighted: {
      const auto even = std::vector<std::uint32_t>(static_cast<std::size_t>(channel.size()), 1);
      const bool known = plan_ && !plan_->weights.empty();
      return weighted_all_reduce(channel, data, known ? plan_->weights : even, reduction);
    }
    case Algorithm::automatic:
    case Algorithm::ring: break;
  }
  ring_all_reduce(channel, even_segments(data, channel.size(), reduction.dtype), reduction);
}

}  // namespace bimetal::comm
