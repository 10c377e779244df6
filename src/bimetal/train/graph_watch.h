#pragma once
// Finds losses whose autograd graph outlives their step: a task that adds them up, or keeps them in
// a list, makes memory grow from step to step, which nothing else tells.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/function.h>

#include <array>

namespace bimetal::train {

/// Use from one thread.
class GraphWatch {
 public:
  /// A step's loss, before its backward. Logs one warning in its life, when three graphs in a row
  /// were still there two steps later. (The last one may be kept: it is replaced.)
  void saw(const torch::Tensor& loss);

  bool has_warned() const noexcept { return warned_; }

 private:
  using Node = torch::autograd::Node;
  using Graph = c10::weak_intrusive_ptr<Node>;

  static constexpr int kInARow = 3;

  static Graph none() { return Graph(c10::intrusive_ptr<Node>()); }

  std::array<Graph, 2> last_ = {none(), none()};  ///< the older one first
  int kept_ = 0;
  bool warned_ = false;
};

}  // namespace bimetal::train
