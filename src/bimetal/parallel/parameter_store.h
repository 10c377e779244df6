#pragma once
// The place of a rank's parameters, gradients and their sums over the ranks: whole on every rank
// (data/replicated_model.h), or in shards (shard/sharded_model.h). A training step needs no more of
// either.
//
// The time from the first to the last exchange of a step, beside other computation.

#include <ATen/record_function.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/comm/compress/compressed_all_reduce.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/work.h"
#include "bimetal/task/task.h"

namespace bimetal::parallel {

/// From the sending of a step's first exchange to the end of its last one. Use from one thread at a
/// time; the exchanges may end on others.
class ExchangeSpan {
 public:
  ExchangeSpan();

  /// A step begins: nothing has been sent, nor waited for.
  void begin();
  /// `work` has just been sent.
  void watch(const comm::Work& work);

  /// So far in this step.
  double seconds() const noexcept;

  /// Seconds in which this rank has waited for others: the code that waits adds them (marked_wait).
  double waited = 0;

 private:
  struct Ends;
  Deadline::Clock::time_point first_sent_;
  std::shared_ptr<Ends> ends_;
};

// Waits of a step: timed for the report, and marked for a trace.

/// The beginning of such marks' names. A trace has them in a row of their own.
inline constexpr const char* kWaitingFor = "waiting for ";

/// Adds the seconds that `wait` takes to `seconds`, and returns its result. In a trace it has the
/// name that `make_name` gives behind "waiting for "; that is called only while somebody profiles.
/// An error passes through, and its wait does not count.
template <std::invocable MakeName, std::invocable Wait>
auto marked_wait(double& seconds, const MakeName& make_name, const Wait& wait) {
  at::RecordFunction mark(at::RecordScope::USER_SCOPE);
  if (mark.isActive()) mark.before(kWaitingFor + std::string(make_name()));
  const Stopwatch waiting;
  if constexpr (std::is_void_v<decltype(wait())>) {
    wait();
    seconds += waiting.seconds();
  } else {
    auto result = wait();
    seconds += waiting.seconds();
    return result;
  }
}

/// A tensor of an optimizer, or of a model, as a store knows it.
struct TensorFacts {
  bool trained = false;  ///< finish_step() gives it the gradient that an optimizer updates it by
  torch::Tensor whole;   ///< the model's tensor of which it is a piece: itself, if those are whole
  /// Whether this rank adds its gradient to a norm over the ranks: if several ranks have the same
  /// gradient, one does.
  bool counts = true;
};

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
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// The number of passes in which each rank should compute its share of the next step, given this
  /// rank's own wish. If ranks take part in each other's passes (zero.level 2 and 3), one rank's
  /// large pass beside another's two small ones would make both wait for the larger of each.
  /// Between steps; collective, ranks without samples included.
  virtual int agree_on_passes(int own) { return own; }

  /// Clears the gradients. From then on they are multiplied by `scale`, for float16, where small
  /// numbers underflow. It is the same on every rank. Error(InvalidArgument) unless weight > 0.
  void begin_step(std::int64_t weight, double scale = 1);

  /// `loss`: one number, for this rank's samples. Adds the gradient of loss · part / W to the
  /// gradients. Error(InvalidArgument) unless 0 < part, and if the parts of this step come to more
  /// than W.
  void backward(const torch::Tensor& loss, std::int64_t part = 1) { add(loss, part, false); }
  /// The same for the step's last micro-batch.
  void backward_last(const torch::Tensor& loss, std::int64_t part = 1) { add(loss, part, true); }

  /// A pass that the caller runs by itself, as stages of pipelines do, whose backward begins with
  /// gradients from elsewhere: `backward` adds to the parameters' gradients, which are to be
  /// multiplied by loss_factor(). In the place of backward(), or with `last` of backward_last().
  /// An empty one, with `last`, says that no more come. Error(Unsupported) where a store has to
  /// know when passes begin.
  void run_pass(const std::function<void()>& backward, bool last);
  /// Before the first of a step's run_pass(), or of its forward passes: at most so many come with a
  /// backward. Ranks may differ; a rank without any need not say so.
  virtual void expect_passes(int /*count*/) {}
  /// begin_step() multiplies a loss of part 1 by this: scale / W.
  double loss_factor() const noexcept { return scale_ / static_cast<double>(weight_); }

  /// Waits until the gradients are summed over the ranks. Rethrows the fabric's errors. After an
  /// exception in forward or backward of this rank alone, calling it still takes part in every
  /// exchange (with this rank's own values), so that no other rank hangs. The caller then discards
  /// the step on all ranks. `before_sums` is called once nobody's passes wait for this rank any
  /// more: it may add to gradients that the store expects late (ShardedModelOptions::stage).
  /// `when_sent` once all of this rank's gradients are on their way, for which its device has
  /// computed them, and before the last sum has come.
  void finish_step(const std::function<void()>& before_sums = {},
                   const std::function<void()>& when_sent = {});

  /// Collective, once the optimizer has changed this rank's parameters: makes the change known to
  /// all ranks.
  virtual void after_update() {}

  /// Between steps: parameters that are whole all the time have become others on all ranks alike,
  /// and this rank's own part of them follows. Not for parameters that are whole in another type
  /// than they are kept in.
  virtual void whole_changed() {}

  virtual TensorFacts facts_of(const torch::Tensor& tensor) const = 0;

  /// Whether the gradients of a rank's optimizer are but its part of them, so that a norm is to be
  /// added up over the ranks.
  bool in_shards() const noexcept { return traits_.in_shards; }
  /// Whether state that one rank keeps is on another rank, too, once finish_step() has returned
  /// there.
  bool keeps_copies() const noexcept { return traits_.keeps_copies; }
  /// Whether parameters change while backward still runs, so that a step that fails may have been
  /// applied in part, and cannot be repeated.
  bool updates_in_backward() const noexcept { return traits_.updates_in_backward; }

  /// Whether passes wait for other ranks, whose devices then have nothing to do.
  bool waits_in_passes() const noexcept { return traits_.waits_in_passes; }

  /// Copies rank `root`'s buffers (running means and the like) to all. Collective; nothing is sent
  /// when the model has none.
  void broadcast_buffers(int root);

  /// The error feedback of compression, of all ranks together and the same on each: for
  /// checkpoints. Empty if nothing is compressed. Collective, between steps.
  virtual std::vector<comm::NamedValues> error_feedback() { return {}; }
  /// Goes on with it after `steps` steps, on any number of ranks. False, and it is dropped, if it
  /// is of other buckets. Called with the same on every rank, between steps.
  virtual bool set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t /*steps*/) {
    return state.empty();
  }

  /// Seconds of this step spent waiting for other ranks and the network, so far.
  double wait_seconds() const noexcept { return times().waited; }
  /// Seconds of this step between the first exchange's start and the last one's end.
  double communicate_seconds() const noexcept { return times().seconds(); }

  const comm::Group& group() const noexcept { return group_; }

 protected:
  /// Properties of the store: the same at all times and on every rank.
  struct Traits {
    bool in_shards = false, keeps_copies = false, updates_in_backward = false;
    bool waits_in_passes = false;
    bool takes_passes = true;  ///< run_pass()
  };

  /// Verifies that all ranks hold the same parameters and buffers (count, names, shapes, types;
  /// Error(CallMismatch) names the first difference and the ranks), and copies rank 0's buffers to
  /// all. Collective.
  ParameterStore(const task::ModelState& model, comm::Group group, std::size_t message_bytes,
                 std::chrono::milliseconds timeout);

  virtual void begin() = 0;
  /// `backward`: as run_pass() has it.
  virtual void pass(const std::function<void()>& backward, bool last) = 0;
  virtual void finish(const std::function<void()>& before_sums,
                      const std::function<void()>& when_sent) = 0;
  virtual const ExchangeSpan& times() const noexcept = 0;

  Traits traits_;

 private:
  enum class Phase {
    idle,      ///< outside of a step
    open,      ///< begin to the last pass
    reducing,  ///< the last pass to finish
  };

  void require_open() const;
  void add(const torch::Tensor& loss, std::int64_t part, bool last);

  comm::Group group_;
  std::vector<torch::Tensor> buffers_;
  std::size_t message_bytes_;
  std::chrono::milliseconds timeout_;

  Phase phase_ = Phase::idle;
  std::int64_t weight_ = 1;
  std::int64_t done_ = 0;  ///< of it
  double scale_ = 1;
};

}  // namespace bimetal::parallel
