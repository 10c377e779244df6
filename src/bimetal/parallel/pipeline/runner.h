#pragma once
// Runs a stage's schedule: forward and backward of its pieces for each micro-batch, and the
// messages from and to the neighbouring stages.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/pipeline/activation_codec.h"
#include "bimetal/parallel/pipeline/link.h"
#include "bimetal/parallel/schedule/deal.h"
#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::pipeline {

/// A stage's computation. The code that runs it knows nothing of models, data or precision.
struct StageWork {
  /// The model's inputs for a micro-batch: asked for where the model begins.
  std::function<task::Values(int micro_batch)> inputs;
  std::function<task::Values(int chunk, int micro_batch, const task::Values& inputs)> forward;
  /// The sum of the loss over the model's outputs, one number: asked for where the model ends.
  std::function<torch::Tensor(int micro_batch, const task::Values& outputs)> loss_sum;
  /// Whether the step may go on after this exception: the other stages then get word instead of
  /// activations, and the step's result is to be dropped by all.
  std::function<bool(const std::exception_ptr&)> survivable;
  /// Told once this stage will not compute the step to its end, whatever the cause; may be left
  /// out.
  std::function<void()> gave_up = {};
};

/// A stage's place in the line of pieces that a micro-batch goes through.
struct Line {
  int stage = 0, stages = 1, chunks = 1;

  int piece(int chunk) const { return schedule::piece_of(stage, chunk, stages); }
  int stage_of(int piece) const { return piece % stages; }
  bool begins(int piece) const { return piece == 0; }
  bool ends(int piece) const { return piece + 1 == stages * chunks; }
};

struct RunnerOptions {
  schedule::Kind kind = schedule::Kind::one_f_one_b;
  int chunks = 1;
  /// zero_bubble: backward may be split. Not where activations are computed again, which would be
  /// done for each of the parts: then all of it is done with the first.
  bool split = true;
  torch::Device device{torch::kCPU};
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  /// Seconds so far in which computing has waited for sums of tensors in parts, and the other ranks
  /// that have them. May be left out.
  std::function<double()> waited = {};
  /// Compression of messages in training steps; forwards alone are sent as they are.
  ActivationCompression compression = {};
  /// By which stages on one host reach each other's devices: all ranks give one, or none does.
  c10d::VendorLibrary vendor = {};
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  std::string timeout_name = "parallel.timeout_s";  ///< for messages: what sets it
  /// Called around each action's computation, and around its wait for another stage, for
  /// measurements; may be left out.
  using Around = std::function<void(const schedule::Action&, const std::function<void()>&)>;
  Around around = {}, around_wait = {};
};

/// Use from one thread. All stages of a pipeline make the same calls.
class Runner {
 public:
  /// `mesh` must outlive it. Collective over mesh.pipeline(). Errors: Link's.
  Runner(const Mesh& mesh, RunnerOptions options);

  struct Result {
    double loss_sum = 0;            ///< of all samples, on the last stage; else 0
    double wait_seconds = 0;        ///< for other stages
    std::exception_ptr error = {};  ///< here, if it was survivable
    bool incomplete = false;        ///< on this stage or one before
  };

  /// A step between the store's begin_step() and finish_step(). `deal`: how its micro-batches go to
  /// the replicas of mesh.widths(), the same on all ranks. Errors: the fabric's, and those of
  /// StageWork; CallMismatch where another stage has another compression.
  Result run(const schedule::Deal& deal, const StageWork& work, ParameterStore& store);

  /// Forward alone, without gradients; `take` gets the model's outputs where it ends.
  /// `work.inputs` and `work.forward` are used, and `work.survivable` for exceptions of these and
  /// of `take`. Only `error` and `incomplete` of the result are set.
  Result run_forward(const schedule::Deal& deal, const StageWork& work,
                     const std::function<void(int micro_batch, const task::Values& outputs)>& take);

  /// From the next step on RunnerOptions::split is false.
  void never_split() noexcept { options_.split = false; }

  /// Bytes of activations and their gradients that this rank has sent.
  std::int64_t bytes_sent() const noexcept { return link_.bytes_sent(); }

 private:
  const Mesh& mesh_;
  RunnerOptions options_;
  Line line_;
  Link link_;
  std::int64_t steps_ = 0;
};

}  // namespace bimetal::parallel::pipeline
