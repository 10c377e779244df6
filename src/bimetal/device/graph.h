#pragma once
// Work that an accelerator is given once and repeats as a whole, so that the host does not launch
// each of its kernels anew: CUDA graphs, and what other vendors have like them.

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <memory>

namespace bimetal::device {

/// Launches in their order. Repeated, they read and write the very memory that they did when they
/// were recorded. Use from one thread.
class Graph {
 public:
  virtual ~Graph() = default;

  /// From begin() to end() what comes to the current stream, which is not the default one, is kept
  /// and not done. What it allocates is of `pool` ({0, 0}: of a new one) and stays there as long as
  /// the graph. Other threads may use the device by other streams, and none may wait for all of it.
  virtual void begin(c10::MempoolId_t pool) = 0;
  /// Errors of both, and of what comes between: c10::Error for what a graph cannot have: the host
  /// waits for the device, or copies from memory that is not page-locked.
  virtual void end() = 0;
  virtual c10::MempoolId_t pool() const = 0;  ///< after end()

  /// All of it, by the current stream.
  virtual void replay() = 0;
};

/// nullptr where the device has no graphs, or this build does not know how to ask for them: CUDA's
/// need CUDA's headers when Bimetal is built, those of other vendors torch 2.13.
std::unique_ptr<Graph> make_graph(const torch::Device& device);

/// Whether it has them.
bool has_graphs(const torch::Device& device);

/// Records graphs that share their memory, since they are never repeated side by side: what one has
/// left there the next may overwrite. Use from one thread.
class GraphRecorder {
 public:
  /// Error(Unsupported) unless has_graphs(device).
  explicit GraphRecorder(const torch::Device& device);

  /// What `work` launches, this thread's backward included, is done by each replay() and not now.
  /// Errors: Graph::end()'s; those of `work`, after which others can be recorded, unless they are
  /// of what a graph cannot have.
  std::unique_ptr<Graph> record(const std::function<void()>& work);

  /// All graphs so far have gone, and their memory with them.
  void forget_memory() { pool_ = {0, 0}; }

 private:
  torch::Device device_;
  c10::Stream stream_;
  c10::MempoolId_t pool_ = {0, 0};
};

/// CUDA's, or ROCm's under the same names; nullptr in a build without their headers.
std::unique_ptr<Graph> make_cuda_graph();

}  // namespace bimetal::device
