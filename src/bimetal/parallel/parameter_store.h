#pragma once
// Where a rank's parameters, gradients and their sums over the ranks are kept: whole on every rank
// (data/replicated_model.h), or in shards (shard/sharded_model.h). This is the interface that a
// training step needs of either.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"

namespace bimetal::parallel {

/// Use from one thread; all ranks make the same calls, but for backward(), which a rank without
/// samples leaves out.
///
///   store.begin_step(weight);         // W of this step's samples, the same on every rank
///   store.backward(loss, part);       // the loss counts part/W: 1 of a sum over samples, b of
///   …                                 //   a mean over b of them; once per micro-batch
///   store.backward_last(loss, part);  // the last one reduces while it runs
///   store.finish_step();              // gradients are now those of the mean over W
///   optimizer.step();
///   store.after_update();
///
/// Calls in another order throw Error(InvalidArgument) and change nothing.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  /// In how many passes each rank had better compute its share of the next step, given in how many
  /// this one would: where ranks take part in each other's passes (zero.level 2 and 3), a rank with
  /// one large pass beside another's two small ones would have both wait for the larger of each.
  /// Between steps; collective, ranks without samples included.
  virtual int agree_on_passes(int own) { return own; }

  /// Clears the gradients. They become `scale` times what they are said to be: for float16, whose
  /// small numbers are none; the same on every rank. Error(InvalidArgument) unless weight > 0.
  virtual void begin_step(std::int64_t weight, double scale = 1) = 0;

  /// `loss`: one number, of this rank's samples. Adds the gradient of loss · part / W to the
  /// gradients. Error(InvalidArgument) unless 0 < part, and if the parts of this step come to more
  /// than W.
  virtual void backward(const torch::Tensor& loss, std::int64_t part = 1) = 0;

  /// The same for the step's last micro-batch.
  virtual void backward_last(const torch::Tensor& loss, std::int64_t part = 1) = 0;

  /// A pass that the caller runs by itself, as stages of pipelines do, whose backward begins with
  /// gradients from elsewhere: `backward` adds to the parameters' gradients, which are to be
  /// multiplied by loss_factor(). In the place of backward(), or with `last` of backward_last().
  /// An empty one, with `last`, says that no more come.
  virtual void run_pass(const std::function<void()>& backward, bool last) = 0;
  /// Before the first of a step's run_pass(), or of its forward passes: at most so many come with a
  /// backward. Ranks may differ; who has none need not say so.
  virtual void expect_passes(int /*count*/) {}
  /// After the last of them, where something is waited for before finish_step(): ranks with fewer
  /// passes take part in those of others. finish_step() does so where it has not been done.
  virtual void finish_passes() {}
  /// Around forward passes outside of a step that somebody else runs, as stages of pipelines do:
  /// the parameters are there. Collective.
  virtual void begin_forwards() {}
  virtual void end_forwards() {}
  /// What begin_step() makes of a loss of part 1: scale / W.
  virtual double loss_factor() const = 0;

  /// Waits until the gradients are summed over the ranks. Rethrows the fabric's errors. After an
  /// exception in forward or backward of this rank alone, calling it still takes part in every
  /// exchange (with what this rank has), so that no other rank hangs; the caller then discards the
  /// step on all ranks.
  virtual void finish_step() = 0;

  /// Collective, once the optimizer has changed what this rank keeps: all ranks get to know.
  virtual void after_update() {}

  /// Between steps: parameters that are whole all the time have become others on all ranks alike,
  /// and what this rank keeps of them becomes the same. Not of what is whole in another type than
  /// it is kept in.
  virtual void whole_changed() {}

  /// Whether the gradients of a rank's optimizer are but its part of them, so that a norm is to be
  /// added up over the ranks.
  virtual bool in_shards() const noexcept { return false; }

  /// Whether finish_step() gives `parameter` the gradient that an optimizer is to update it by.
  virtual bool trains(const torch::Tensor& parameter) const = 0;

  /// The model's tensor of which `parameter`, one of this rank's optimizer's, is a piece: itself
  /// where those are whole.
  virtual torch::Tensor whole_of(const torch::Tensor& parameter) const { return parameter; }

  /// Whether this rank adds the gradient of `parameter`, one of its optimizer's, to that norm: of
  /// several ranks that have the same one, one does.
  virtual bool counts(const torch::Tensor& /*parameter*/) const { return true; }

  /// Whether what a rank keeps alone is on another rank, too, once finish_step() has returned
  /// there.
  virtual bool keeps_copies() const noexcept { return false; }

  /// Whether the others can go on with a step in whose passes this rank stops.
  virtual bool can_repeat() const noexcept { return true; }

  /// Whether parameters change while backward still runs, so that a step that fails may have been
  /// applied in part.
  virtual bool updates_in_backward() const noexcept { return false; }

  /// Copies rank `root`'s buffers (running means and the like) to all. Collective; nothing is sent
  /// when the model has none.
  virtual void broadcast_buffers(int root) = 0;

  /// What compression has not got across yet, of all ranks together and the same on each: for
  /// checkpoints. Empty where nothing is compressed. Collective, between steps.
  virtual std::vector<comm::NamedValues> error_feedback() { return {}; }
  /// Goes on with it after `steps` steps, on any number of ranks. False, and it is dropped, if it
  /// is of other buckets. Called with the same on every rank, between steps.
  virtual bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t /*steps*/) {
    return state.empty();
  }

  /// Seconds of this step spent waiting for other ranks and the network, so far.
  virtual double wait_seconds() const noexcept = 0;
  /// Seconds of this step between the first exchange's start and the last one's end.
  virtual double communicate_seconds() const noexcept = 0;

  virtual const comm::Group& group() const noexcept = 0;
};

}  // namespace bimetal::parallel
