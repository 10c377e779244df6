#pragma once
// What a simulated device (simulated_device.h) launches while a graph is recorded: kept, and done
// by each replay. Until then nothing has changed, and what is read is no number, as on a card.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Stream.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace bimetal::testing {

/// Kernels of one stream, in their order. Those of other streams are done meanwhile, by any thread.
class SimulatedGraph {
 public:
  explicit SimulatedGraph(c10::StreamId stream) : stream_(stream) {}

  /// The one that is recorded on this stream; nullptr: none is.
  static SimulatedGraph* on(c10::StreamId stream);
  static void begin(std::shared_ptr<SimulatedGraph> graph);
  static void end(const SimulatedGraph& graph);

  /// c10::Error: nobody can wait for what is not done.
  [[noreturn]] static void refuse(const char* what);

  /// `run` makes `made`, and changes `changed`, as it has done once now: that is undone.
  void add(std::function<std::vector<at::Tensor>()> run, const std::vector<at::Tensor>& made,
           const std::vector<at::Tensor>& changed, const std::vector<at::Tensor>& before);

  void replay() const;

 private:
  const c10::StreamId stream_;
  std::vector<std::function<void()>> kernels_;
};

/// The same memory of a simulated device as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor);

/// Without what autograd knows of it, so that a graph keeps memory alone.
at::Tensor memory_of(const at::Tensor& tensor);

/// The tensors among its arguments that an operator's schema says it changes, but for those that it
/// makes.
std::vector<at::Tensor> changed_by(const c10::OperatorHandle& op,
                                   const std::vector<c10::IValue>& arguments);
/// All of some values, lists included.
std::vector<at::Tensor> tensors_in(const std::vector<c10::IValue>& values);
/// The same values, with memory_of() each tensor.
std::vector<c10::IValue> memory_of(const std::vector<c10::IValue>& values);

}  // namespace bimetal::testing
