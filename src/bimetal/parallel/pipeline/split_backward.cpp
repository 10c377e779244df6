#include "bimetal/parallel/pipeline/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace bimetal::parallel::pipeline {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

edge_list edges_of(const task::Values& tensors) {
  edge_list edges;
  for (const auto& tensor : tensors) edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  return edges;
}

/// Adds to the grad() of the leaves that `to` stands for. The graph stays.
void go_back(const edge_list& from, const variable_list& gradients, const edge_list& to) {
  if (from.empty() || to.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(from, gradients, /*keep_graph=*/true,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, to);
}

/// Whether a way leads from a node to one of some leaves.
class Ways {
 public:
  explicit Ways(const edge_list& leaves) {
    for (const auto& leaf : leaves) reach_[leaf.function.get()] = true;
  }

  bool lead_on(const Node* node) const {
    const auto found = reach_.find(node);
    return found != reach_.end() && found->second;
  }

  /// Looks at all that `root` leads to; gives each node once, those behind it first.
  template <typename Visit>
  void explore(Node* root, const Visit& visit) {
    std::vector<std::pair<Node*, std::size_t>> path;
    const auto enter = [&](Node* node) {
      if (node && seen_.insert(node).second) path.emplace_back(node, 0);
    };
    enter(root);
    while (!path.empty()) {
      auto& [node, next] = path.back();
      if (next < node->num_outputs()) {
        enter(node->next_edge(next++).function.get());
        continue;
      }
      bool leads = lead_on(node);
      for (const auto& edge : node->next_edges()) leads = leads || lead_on(edge.function.get());
      reach_[node] = leads;
      visit(node);
      path.pop_back();
    }
  }

 private:
  std::unordered_map<const Node*, bool> reach_;
  std::unordered_set<const Node*> seen_;
};

/// The parameters that lie behind `node` where no way leads to inputs.
void collect(const Edge& edge, std::unordered_set<Node*>& seen, edge_list& parameters) {
  auto* const node = edge.function.get();
  if (!node || !seen.insert(node).second) return;
  if (dynamic_cast<AccumulateGrad*>(node) != nullptr) parameters.push_back(edge);
  for (const auto& next : node->next_edges()) collect(next, seen, parameters);
}

}  // namespace

SplitBackward::SplitBackward(task::Values outputs, task::Values gradients, task::Values inputs)
    : roots_(edges_of(outputs)), inputs_(edges_of(inputs)), gradients_(std::move(gradients)) {
  find_forks();
}

SplitBackward::~SplitBackward() {
  take_hooks_off();
}

void SplitBackward::find_forks() {
  Ways ways(inputs_);
  std::unordered_map<Node*, int> uses;  // of each parameter, by operations
  const auto count = [&](const edge_list& parameters) {
    for (const auto& parameter : parameters) ++uses[parameter.function.get()];
  };
  edge_list beside;  // behind outputs that no input leads to
  for (const auto& root : roots_) {
    ways.explore(root.function.get(), [&](Node* node) {
      if (!ways.lead_on(node)) return;
      auto fork = std::make_unique<Fork>();
      std::unordered_set<Node*> seen;
      for (const auto& edge : node->next_edges()) {
        if (!ways.lead_on(edge.function.get())) collect(edge, seen, fork->parameters);
      }
      if (fork->parameters.empty()) return;
      fork->node = node->getptr();
      count(fork->parameters);
      forks_.push_back(std::move(fork));
    });
    if (ways.lead_on(root.function.get())) continue;
    std::unordered_set<Node*> seen;
    collect(root, seen, beside);
  }
  std::unordered_set<Node*> known;
  const auto pass_by = [&](const Edge& parameter) {
    if (known.insert(parameter.function.get()).second) others_.push_back(parameter);
  };
  for (const auto& parameter : beside) pass_by(parameter);
  for (const auto& fork : forks_) {
    std::erase_if(fork->parameters, [&](const Edge& parameter) {
      const bool shared =
          uses[parameter.function.get()] > 1 || known.contains(parameter.function.get());
      if (shared) pass_by(parameter);
      return shared;
    });
  }
  std::erase_if(forks_, [](const auto& fork) { return fork->parameters.empty(); });
}

void SplitBackward::of_inputs() {
  for (auto& fork : forks_) {
    fork->hook = fork->node->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [to = fork.get()](const variable_list& outputs, const variable_list& arrived) {
          to->gradients = arrived;
          return outputs;
        }));
  }
  go_back(roots_, gradients_, inputs_);
  take_hooks_off();
}

void SplitBackward::of_weights() {
  go_back(roots_, gradients_, others_);
  for (auto& fork : forks_) {
    edge_list from;
    variable_list arrived;
    for (std::size_t i = 0; i < fork->gradients.size(); ++i) {
      if (!fork->gradients[i].defined()) continue;
      from.emplace_back(fork->node, static_cast<std::uint32_t>(i));
      arrived.push_back(std::move(fork->gradients[i]));
    }
    go_back(from, arrived, fork->parameters);
  }
}

void SplitBackward::take_hooks_off() {
  for (auto& fork : forks_) {
    if (fork->hook != 0) fork->node->del_post_hook(std::exchange(fork->hook, 0));
  }
}

}  // namespace bimetal::parallel::pipeline
