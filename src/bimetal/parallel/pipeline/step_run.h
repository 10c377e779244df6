#pragma once
// One step of a stage. Private to this folder.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bimetal/parallel/parameter_store.h"
#include "bimetal/parallel/pipeline/link.h"
#include "bimetal/parallel/pipeline/runner.h"
#include "bimetal/parallel/pipeline/split_backward.h"

namespace bimetal::parallel::pipeline {

/// The origin and the destination of a step's micro-batches.
struct Route {
  const Mesh& mesh;
  const schedule::Deal& deal;
  Line line;

  bool comes_by(int micro_batch) const {
    return deal.replica(line.stage, micro_batch) == mesh.own_replica();
  }
  /// The rank of mesh.pipeline() that sends the output of piece `piece`.
  int peer(int piece, int micro_batch) const {
    const int stage = line.stage_of(piece);
    return mesh.peer(stage, deal.replica(stage, micro_batch));
  }
  /// The ranks to send that piece's input to.
  std::vector<int> receivers(int piece, int micro_batch) const {
    const int stage = line.stage_of(piece);
    return mesh.receivers(stage, deal.replica(stage, micro_batch));
  }
  /// Whether gradients of the outputs of `piece` go with a description. Otherwise their receiver
  /// knows their form, and whether there are any, from its own message. If stages have unlike
  /// numbers of parts, one rank may get the gradients of another's outputs.
  bool gradients_described(int piece) const {
    const auto& shape = mesh.shape();
    return shape.tensor_of(line.stage_of(piece)) != shape.tensor_of(line.stage_of(piece + 1));
  }
};

/// A stage's activities. Some may fail without ending the run.
enum class Doing { computing, talking };

/// Calls `what`, unless this stage has given up. If it throws, notes the reason in `result`, and
/// this stage has to give up. Returns whether it was done. Rethrows errors after which a step does
/// not go on.
bool done(const StageWork& work, Runner::Result& result, Doing doing,
          const std::function<void()>& what);

class StepRun {
 public:
  StepRun(const Route& route, const RunnerOptions& options, Link& link, std::int64_t step,
          const StageWork& work, ParameterStore& store);

  Runner::Result run();

 private:
  using Action = schedule::Action;
  using Key = std::pair<int, int>;  ///< chunk, micro-batch

  /// A micro-batch in a piece, from forward to the end of backward.
  struct Pass {
    bool received = false;  ///< its inputs: who sent them waits for gradients
    task::Values inputs, outputs;
    torch::Tensor loss;
    Incoming gradients;  ///< of the outputs, from the piece behind
    std::unique_ptr<SplitBackward> split;
    bool whole = false;  ///< its computation has come as far as it should
  };

  void post_receives();
  std::size_t last_backward() const;
  int passes() const;
  void act(const Action& action, bool last);
  void forward(const Action& action);
  void compute_forward(const Action& action, Pass& pass);
  void hand_on(const Action& action, Pass& pass);
  void backward(const Action& action, bool last);
  void compute_backward(Pass& pass, const task::Values& gradients, bool split, bool last);
  void hand_back(const Action& action, const Pass& pass);
  void backward_weight(const Action& action, bool last);
  /// Once this stage has given up, on the host, since nobody computes with them.
  std::optional<task::Values> wait_for(const Action& action, Incoming& incoming);
  /// done(), or gives up.
  bool attempt(const std::function<void()>& what, Doing doing = Doing::talking);
  /// The same for what takes the device's time.
  bool try_to(const Action& action, const std::function<void()>& compute);
  void give_up();

  const Route route_;
  const Line line_;
  const RunnerOptions& options_;
  Link& link_;
  const std::int64_t step_;
  const StageWork& work_;
  ParameterStore& store_;
  const std::vector<Action> actions_;
  std::map<Key, Incoming> activations_;
  std::map<Key, Pass> passes_;
  std::vector<torch::Tensor> losses_;
  Runner::Result result_;
};

}  // namespace bimetal::parallel::pipeline
