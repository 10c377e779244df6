#pragma once
// The leases of a worker, one after the other. Parameters come in, and gradients go out while
// backward still runs. They are weighted so that the sum over a step's leases is the gradient of
// the mean loss over the step (docs/parameter_server.md).

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/task/unit.h"

namespace bimetal::parallel::server {

/// Owns the gradient hooks of one worker's parameters. Use from one thread.
///
///   gradients.begin(lease);                 // asks for parameters: prepare the batch meanwhile
///   gradients.wait_for_parameters();        // or wait_for() of each unit before it is used
///   gradients.backward(loss, part);         // once per micro-batch, as
///   parallel::ReplicatedModel's gradients.backward_last(loss, part);    // pushes while it runs
///   gradients.finish();
class RemoteGradients {
 public:
  /// `parameters`: as given to the client, which must outlive it.
  RemoteGradients(Client& client, std::vector<torch::Tensor> parameters);

  void begin(const Lease& lease);
  void wait_for_parameters();
  /// Waits for one unit's parameters alone: forward can begin while others' are on their way.
  void wait_for(const task::Unit& unit);
  void backward(const torch::Tensor& loss, std::int64_t part = 1);
  void backward_last(const torch::Tensor& loss, std::int64_t part = 1);
  /// Pushes gradients of parameters that the last backward pass did not reach, and ends the pull:
  /// parameters that nobody used may come last.
  void finish();

  /// After an error in forward or backward: drops the gradients, so that the lease can be computed
  /// again. False if some of them have left already.
  bool start_over();

  /// The version of this lease's oldest parameters, after finish() or wait_for_parameters().
  std::uint64_t version() const noexcept { return version_; }
  /// How long this lease has waited for parameters.
  double pull_seconds() const noexcept { return pull_seconds_; }

 private:
  void on_gradient(std::size_t parameter);
  void run_backward(const torch::Tensor& loss, std::int64_t part) const;
  void clear_gradients();

  Client& client_;
  std::vector<torch::Tensor> parameters_;
  Lease lease_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> numbers_;  ///< of the parameters
  std::vector<std::uint8_t> pushed_;  ///< bytes: written by several threads
  bool pushing_ = false;
  std::uint64_t version_ = 0;
  double pull_seconds_ = 0;
  GradientHooks hooks_;
};

}  // namespace bimetal::parallel::server
