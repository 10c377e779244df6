#pragma once
// A model in shards whose forward and backward run elsewhere, as modules in Python do. Hooks report
// where they are.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::shard {

/// One pass is
///
///   forward_begins(true);
///   …enter(unit, inputs), the unit's forward, leave(unit, outputs)…   // level 3
///   forward_ends();
///   backward_begins(pass, reduce);   // when autograd comes to the model's outputs
///   …
///   backward_ends();                 // when it is through
///
/// and one step any number of passes, finish(), the optimizer's step on sharded().pieces(),
/// after_update(). The ranks of a step may have unequal numbers of passes, or none. A
/// pass whose backward never comes is given up by the next one, or by finish(). Gradients are sums
/// over the ranks: the caller decides the weight of a rank's loss.
///
/// Use from one thread; the nodes that leave() and enter() put into the graph run in autograd's,
/// and throws c10d::BackendError there.
class HookedModel {
 public:
  /// `units`: their forwards are not used. In level 3 a module runs between enter() and leave() of
  /// its unit, once in a pass; the last unit's parameters and those of several units are there
  /// from forward to backward. As ShardedModel's otherwise. Collective.
  HookedModel(const task::Model& units, comm::Group group, ShardedModelOptions options);

  ShardedModel& sharded() noexcept { return sharded_; }

  /// Collective in effect: returns when every rank has begun a pass or is in finish().
  /// Error(CallMismatch) if some ranks' have a backward and others' do not; Error(InvalidArgument)
  /// between hold_whole() and let_go_of_whole().
  void forward_begins(bool with_backward);
  void forward_ends();

  /// The unit's parameters are there when it returns. `inputs`: tensors that need a gradient; the
  /// same, to go on with. Also where backward computes a unit again. Error(Unsupported) for a unit
  /// that runs a second time; Error(InvalidArgument) outside of a pass.
  task::Values enter(std::size_t unit, const task::Values& inputs);
  task::Values leave(std::size_t unit, const task::Values& outputs);

  /// The number of the pass under way, for backward_begins().
  std::int64_t pass() const noexcept { return pass_; }

  /// May come several times in one backward. `reduce`: false leaves the gradients of this rank
  /// where they are, until a later pass or finish() sums them, too (level 1; the other levels
  /// always reduce). Error(Unsupported) in level 3 if another forward has begun since `pass`.
  void backward_begins(std::int64_t pass, bool reduce);
  void backward_ends();

  /// Sums the remaining gradients, takes part in other ranks' passes until nobody has any, and sets
  /// the pieces' gradients. Collective.
  void finish();
  /// Whether this rank has had a backward since the last finish().
  bool has_gradients() const noexcept { return has_gradients_; }
  void after_update();

  /// Takes part in the passes that other ranks still make, until nobody has any: after passes
  /// without a backward, if ranks have made unequal numbers of them. Collective.
  void end_passes();

  /// These parameters, or all where none is named, are there, outside of passes, till they are let
  /// go (at level 3, with others that lie beside them). Collective. Error(InvalidArgument) for an
  /// unknown name, or while some are held.
  void hold_whole(const std::vector<std::string>& names = {});
  /// `root`: its values of them become everybody's before. Collective.
  void let_go_of_whole(std::optional<int> root);

  /// Seconds spent waiting for others so far.
  double wait_seconds() const noexcept;

 private:
  void open();
  void give_up_pass();
  void take_part_in_others();
  std::vector<std::size_t> flats_of(const std::vector<std::string>& names) const;
  void require_current(std::int64_t pass) const;

  ShardedModel sharded_;
  std::vector<bool> entered_;  ///< units, in this pass
  std::int64_t pass_ = 0;
  bool open_ = false;       ///< gradients have been begun
  bool held_back_ = false;  ///< there are some that no pass has summed
  bool has_gradients_ = false;
  bool whole_ = false;
  std::vector<std::size_t> held_;  ///< flat tensors that are
};

}  // namespace bimetal::parallel::shard
