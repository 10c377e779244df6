#pragma once
// Sums gradients over the ranks into the part that each keeps, flat tensor by flat tensor, while
// backward still computes the next ones (ZeRO, stages 1 and 2: Rajbhandari et al., SC 2020, §5.1
// and §5.2).

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/parallel/shard/shard_copies.h"

namespace bimetal::parallel::shard {

/// One step is begin(), then any number of backward passes whose gradients add up here. Each pass
/// that is reduced is during() and complete(), or complete() alone on a rank that computes nothing.
/// Every rank makes the same number of these. Or during() and end_pass(), which waits for nobody,
/// as often as each has passes, end_pass() alone for those that others have, and complete_late() at
/// the end. Late gradients (flat_plan.h) are the parameters' own until complete() or that. Use from
/// one thread; backward itself may use several.
class GradientShards {
 public:
  /// How long a pass waits for sums before its own, so as not to hold more than a few. Ranks that
  /// come to their passes in unlike orders might each wait for sums that the other has yet to
  /// begin: after a while the memory is the smaller evil.
  static constexpr std::chrono::milliseconds kPatience{200};
  /// Sums under way at once: enough to keep a link busy, few enough that their memory does not
  /// count.
  static constexpr std::size_t kMostInFlight = 3;
  static constexpr std::size_t kAnyNumber = std::numeric_limits<std::size_t>::max();

  /// `parameters`: those that the plans' slots name. `plans` and `span` must outlive it. `most` in
  /// flight, for which a pass waits. Collective.
  GradientShards(std::vector<torch::Tensor> parameters, const std::vector<FlatPlan>& plans,
                 Peers peers, ExchangeSpan& span, std::chrono::milliseconds timeout,
                 std::chrono::milliseconds patience = kPatience, std::size_t most = kMostInFlight);

  /// Drops all gradients.
  void begin();

  /// The pass that begins is the step's last with complete(): each sum goes to `take` as soon as
  /// it is there, from whatever call sees to that, and is gone then. used() is what any rank has
  /// had of that flat tensor by then.
  using Take = std::function<void(std::size_t flat, const torch::Tensor& sum)>;
  void hand_over(Take take) { take_ = std::move(take); }

  /// Runs `backward`, and sends each flat tensor's gradients as soon as they are there; the
  /// parameters' own are gone then.
  void during(const std::function<void()>& backward) { filling_.during(backward); }
  /// The same for a backward pass that somebody else runs: whether one is under way.
  void set_reducing(bool on) noexcept { filling_.set_taking(on); }

  /// Sends all that was not sent yet, with zeros where there is no gradient, and waits for every
  /// sum. Rethrows the fabric's errors. `when_sent` is called once all have been.
  void complete(const std::function<void()>& when_sent = {});
  /// Sends all that this pass has not sent, except late parameters.
  void end_pass();
  /// Takes part in so many passes, of which this rank has none. Others wait for it only by these
  /// sums. So it waits as long as it takes, and never has many of them under way.
  void end_others(int count);
  /// Sends that, and waits for every sum of the step.
  void complete_late();
  /// As complete() for the flat tensors from number `first` on, without waiting: for a rank that
  /// computes nothing, while others' backward comes to them.
  void complete_from(std::size_t first);

  /// This step's sums, for this rank's part of each flat tensor; undefined before the first
  /// complete().
  const std::vector<torch::Tensor>& sums() const noexcept { return sums_; }

  /// Whether this rank has had a gradient of each parameter in this step.
  const std::vector<bool>& used() const noexcept { return used_; }

 private:
  struct InFlight {
    std::size_t flat;
    torch::Tensor memory, own;  ///< own: in `memory`, or the first sum of this flat tensor
    bool first;
    Exchange exchange;
    std::shared_ptr<std::vector<std::int32_t>> used;  ///< of its slots; where it is handed over
    comm::Work agreement;                             ///< of all ranks on these
  };

  void expect_anew();
  void arrive_all(const std::function<void()>& when_sent = {});
  void take(std::size_t flat, std::size_t slot);
  void take_missing(std::size_t first);
  void send_ready();
  std::string name_of(const InFlight& sum) const;
  void fill_from(std::size_t first);
  void begin_copied();
  void begin_next();
  bool oldest_arrives_by(Deadline deadline);
  void take_arrived();
  void make_room();
  void arrive();
  void give_away(InFlight& arrived);

  std::vector<torch::Tensor> parameters_;
  const std::vector<FlatPlan>& plans_;
  Peers peers_;
  ExchangeSpan& span_;
  std::chrono::milliseconds timeout_, patience_;
  std::size_t most_;
  std::size_t late_;  ///< of the flat tensors the first so many are
  GroupRoom room_;    ///< for what is filled and sent

  std::vector<torch::Tensor> memory_;  ///< of flat tensors that are being filled
  std::size_t left_ = 0;  ///< flat tensors not sent yet in this pass: the last goes first
  std::deque<InFlight> in_flight_;
  std::size_t begun_ = 0;  ///< the first so many of these: the others' copies have not ended
  std::vector<torch::Tensor> sums_;
  std::vector<bool> summed_;  ///< the first sum of each is under way, or there
  std::vector<bool> used_;
  Take take_;  ///< of this step; none: sums stay

  BucketFilling filling_;  ///< last: its calls use all of the above
};

}  // namespace bimetal::parallel::shard
