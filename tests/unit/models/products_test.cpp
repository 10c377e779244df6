// Units say which parameters only products use. Autocast must agree: that is read off the graph.

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "bimetal/models/language/language_model.h"
#include "bimetal/models/registry.h"
#include "bimetal/task/dropout.h"

namespace bimetal::models {
namespace {

/// While it lives, the CPU multiplies in bfloat16.
struct Lowered {
  Lowered() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
  }
  ~Lowered() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

using Names = std::set<std::string>;

/// The users of each parameter, or of its transpose, by name of the operation's backward.
std::map<const c10::TensorImpl*, Names> users_of_leaves(const torch::Tensor& out) {
  using torch::autograd::Node;
  std::map<Node*, std::set<Node*>> users;
  std::vector<Node*> left = {out.grad_fn().get()};
  while (!left.empty()) {
    auto* const node = left.back();
    left.pop_back();
    for (const auto& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      auto* const used = edge.function.get();
      if (!users.contains(used)) left.push_back(used);
      users[used].insert(node);
    }
  }
  std::map<const c10::TensorImpl*, Names> of_leaves;
  for (const auto& [node, by] : users) {
    const auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    if (!leaf) continue;
    auto& names = of_leaves[leaf->variable.unsafeGetTensorImpl()];
    for (auto* const user : by) {
      const bool transposed = user->name() == "TBackward0";
      for (auto* const taker : transposed ? users.at(user) : std::set<Node*>{user}) {
        names.insert(taker->name());
      }
    }
  }
  return of_leaves;
}

void expect_copies_alone(const task::Model& model, const torch::Tensor& input) {
  const task::DrawScope draws(task::Draws::of_nobody(input.size(0)));
  std::map<const c10::TensorImpl*, Names> users;
  {
    const Lowered lowered;
    users = users_of_leaves(task::run_units(model, {input}).front());
  }
  std::size_t products = 0;
  for (const auto& unit : model.units) {
    for (const auto& [name, tensor] : unit.parameters) {
      const auto& taken_by = users[tensor.unsafeGetTensorImpl()];
      const bool product = std::ranges::find(unit.products, name) != unit.products.end();
      const bool tied = taken_by.size() > 1;
      if (product && !tied) {
        EXPECT_EQ(taken_by, Names{"ToCopyBackward0"}) << name;
      } else if (!tied) {
        EXPECT_FALSE(taken_by.contains("ToCopyBackward0")) << name << " could be a product";
      }
      products += product ? 1 : 0;
    }
  }
  EXPECT_GT(products, 0U);
}

TEST(Products, OfLanguageModelsAreWhatAutocastCopies) {
  for (const std::string name : {"gpt2", "llama"}) {
    for (const bool tied : {true, false}) {
      auto config = resized(language_preset(name), {.layers = 2,
                                                    .width = 16,
                                                    .heads = 4,
                                                    .kv_heads = name == "gpt2" ? 4 : 2,
                                                    .hidden = 24,
                                                    .context = 12,
                                                    .vocabulary = 30});
      config.tied = tied;
      SCOPED_TRACE(name + (tied ? ", tied" : ""));
      expect_copies_alone(make_language_model(config), torch::randint(0, 30, {2, 8}));
    }
  }
}

TEST(Products, OfImageModelsAreWhatAutocastCopies) {
  for (const std::string name : {"cnn", "mlp", "linear", "resnet18", "resnet50"}) {
    SCOPED_TRACE(name);
    const auto model = make_model(name, {}, name.starts_with("resnet") ? 32 : 0)->units();
    expect_copies_alone(model, torch::rand({2, 1, 28, 28}));
  }
}

/// A product with a matrix takes two operations for each of its numbers and each token.
double of_matrices(const task::Unit& unit, std::int64_t tokens) {
  double numbers = 0;
  for (const auto& [name, tensor] : unit.parameters) {
    if (tensor.dim() == 2) numbers += static_cast<double>(tensor.numel());
  }
  return 2 * numbers * static_cast<double>(tokens);
}

TEST(Operations, AreThoseOfTheModelsMatrices) {
  constexpr std::int64_t kTokens = 24;
  for (const char* name : {"gpt2", "llama"}) {
    const auto config = resized(language_preset(name), {.layers = 2,
                                                        .width = 96,
                                                        .heads = 6,
                                                        .kv_heads = name[0] == 'l' ? 2 : 6,
                                                        .context = 32,
                                                        .vocabulary = 50});
    const auto model = make_language_model(config);
    const auto operations = forward_operations(config, kTokens);
    ASSERT_EQ(operations.size(), model.units.size()) << name;
    EXPECT_EQ(operations.front(), 0);
    EXPECT_DOUBLE_EQ(operations.back(), of_matrices(model.units.back(), kTokens)) << name;
    EXPECT_DOUBLE_EQ(operations[1], of_matrices(model.units[1], kTokens) + 4 * 24 * 24 * 96)
        << name;
    EXPECT_DOUBLE_EQ(operations[2], operations[1]);
  }
}

}  // namespace
}  // namespace bimetal::models
