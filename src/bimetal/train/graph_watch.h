#pragma once
// Finds losses whose autograd graph outlives their step: a task that adds them up, or keeps them in
// a list, makes memory grow from step to step, which nothing else tells.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/function.h>

#include <array>
#include <memory>
#include <utility>

namespace bimetal::train {

/// Knows whether a graph's node is still there. torch 2.11 counts nodes by shared_ptr.
template <class Node>
std::weak_ptr<Node> weakly(const std::shared_ptr<Node>& node) {
  return node;
}
template <class Node>
c10::weak_intrusive_ptr<Node> weakly(const c10::intrusive_ptr<Node>& node) {
  return c10::weak_intrusive_ptr<Node>(node);
}

/// Use from one thread.
class GraphWatch {
 public:
  /// A step's loss, before its backward. Logs one warning in its life, when three graphs in a row
  /// were still there two steps later. (The last one may be kept: it is replaced.)
  void saw(const torch::Tensor& loss);

  bool has_warned() const noexcept { return warned_; }

 private:
  using Node = decltype(torch::autograd::Edge::function);
  using Graph = decltype(weakly(std::declval<Node>()));

  static constexpr int kInARow = 3;

  std::array<Graph, 2> last_ = {weakly(Node()), weakly(Node())};  ///< the older one first
  int kept_ = 0;
  bool warned_ = false;
};

}  // namespace bimetal::train
