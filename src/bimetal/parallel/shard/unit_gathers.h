#pragma once
// Gathers parameters in shards while a unit uses them: before its forward and before its backward.
// The next unit's come meanwhile, and they are freed after use (ZeRO, stage 3: Rajbhandari et al.,
// SC 2020, §5.3 and §7.2.2).
//
// Sends updated parameters to all ranks, if they are whole there between steps, too.

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/parallel/shard/flat_plan.h"
#include "bimetal/parallel/shard/shard_copies.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

// Callbacks at the boundaries of a unit, in forward and backward.

struct UnitBoundaries {
  std::function<void()> before_forward, after_forward;
  std::function<void()> before_backward;
  /// Once the gradients of the unit's inputs are there; not called where none of them needs one.
  std::function<void()> after_backward;
};

/// The same values, the tensors of which need a gradient; `call` comes in backward, once those of
/// all of them are there.
task::Values at_backward(const task::Values& values, std::function<void()> call);

/// The same unit, in which they are called: in backward, recomputed or not, by identity functions
/// around it. Exceptions pass through. Use from one thread.
task::Unit fence(task::Unit unit, UnitBoundaries boundaries);

/// Every rank gathers the same flat tensors in the same order, whatever it computes and however it
/// recomputes: a pass has a script, and asking for a unit runs it as far as that unit. Tensors that
/// several units use, and those of the last unit that uses any others, are kept from forward to
/// backward. It leaves resident tensors alone. A pass without a backward gathers in the type that
/// ranks keep. Use from one thread.
class UnitGathers {
 public:
  /// needs[u]: the flat tensors that unit u uses. All that are not resident are let go. `flats`
  /// and `span` must outlive it.
  UnitGathers(std::vector<std::vector<std::size_t>> needs, const std::vector<FlatPlan>& plans,
              std::vector<FlatParameters>& flats, Peers peers, ExchangeSpan& span,
              std::chrono::milliseconds timeout);

  /// `with_backward`: the script has both ways. Nothing is sent yet.
  void begin_pass(bool with_backward);
  /// For any number of passes by turns, which may differ between ranks, in place of one pass. All
  /// tensors are gathered at once, so that nobody waits for another's turn. They stay from
  /// before_forward() to end_pass(), without any other call. `wide`: in the type that ranks keep,
  /// where none of them has a backward.
  void begin_holding(bool wide);
  bool in_pass() const noexcept { return in_pass_; }
  /// The rest of the script, for the ranks that still need it, and then nothing is held any more.
  /// `passed` is told of each flat tensor of the way back once it is there.
  void end_pass(const std::function<void(std::size_t flat)>& passed = {});

  /// Returns when the unit's parameters are there. Rethrows the fabric's errors.
  void before_forward(std::size_t unit) { reach(forward_ends_[unit]); }
  void before_backward(std::size_t unit) { reach(backward_ends_[unit]); }
  /// The unit's parameters are not used any more, or not before backward.
  void let_go(std::size_t unit);

  /// Seconds of waiting for tensors from a disk. No other rank is waited for there.
  double disk_wait_seconds() const noexcept { return disk_wait_seconds_; }

 private:
  void plan_script();
  void begin(bool wide, std::size_t size);
  void reach(std::size_t end);
  void send_next();
  void wait_for_disk(std::size_t flat);
  void wait_next();
  void drop_all();
  bool on_its_way(std::size_t flat) const;

  const std::vector<std::vector<std::size_t>> needs_;
  const std::vector<FlatPlan>& plans_;
  std::vector<FlatParameters>& flats_;
  Peers peers_;
  ExchangeSpan& span_;
  std::chrono::milliseconds timeout_;

  std::vector<bool> kept_;                 ///< of each flat tensor: from forward to backward
  std::vector<std::size_t> script_;        ///< flat tensors: forward, then backward
  std::vector<std::size_t> forward_ends_;  ///< of each unit: how far its needs reach
  std::vector<std::size_t> backward_ends_;
  std::size_t forward_size_ = 0;

  bool in_pass_ = false;
  bool holding_ = false;                ///< all of it to the end
  std::size_t size_ = 0;                ///< of this pass's script
  std::size_t sent_ = 0, arrived_ = 0;  ///< of the script
  std::vector<Exchange> exchanges_;     ///< of the script's flat tensors
  double disk_wait_seconds_ = 0;
};

/// Each flat tensor is gathered once this rank's part of it is updated, while the optimizer goes on
/// with the next: in their order, which is the same on every rank. Use from one thread.
class WholeRenewal {
 public:
  /// `renewed`: which flat tensors, and of how many pieces this rank's part of each consists. All
  /// others must outlive it.
  struct Flat {
    std::size_t index, pieces;
  };
  WholeRenewal(std::vector<Flat> renewed, const std::vector<FlatPlan>& plans,
               std::vector<FlatParameters>& flats, Peers peers, ExchangeSpan& span,
               std::chrono::milliseconds timeout);

  /// One more piece of flat tensor `index` is updated; where that is_copied_to_bfloat16(), the copy
  /// has been written, too.
  void updated(std::size_t index);
  /// All are: sends the rest, and waits. Collective, with or without the former. Rethrows the
  /// fabric's errors.
  void complete();

 private:
  void expect_anew();
  void send_next(bool copied);
  void begin_copied();

  std::vector<Flat> renewed_;
  const std::vector<FlatPlan>& plans_;
  std::vector<FlatParameters>& flats_;
  Peers peers_;
  ExchangeSpan& span_;
  std::chrono::milliseconds timeout_;
  std::vector<std::size_t> left_;    ///< pieces to be updated, by flat tensor
  std::vector<Exchange> exchanges_;  ///< of the first of renewed_
  std::size_t begun_ = 0;            ///< the first so many of these
};

}  // namespace bimetal::parallel::shard
