// Steps of a transformer whose activations are kept or computed again, for bench/recompute.py:
// recompute_step none|all|sqrt|N LAYERS WIDTH HEADS TOKENS BATCH STEPS THREADS. Prints seconds per
// step (median) and the bytes by which memory rises above what model and gradients take.

#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "bimetal/task/segments.h"
#include "bimetal/train/share/compute.h"

namespace {

constexpr std::int64_t kVocabulary = 512;

struct BlockImpl : torch::nn::Module {
  BlockImpl(std::int64_t width, std::int64_t h)
      : heads(h),
        norm1(torch::nn::LayerNormOptions({width})),
        norm2(torch::nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        out(width, width),
        up(width, 4 * width),
        down(4 * width, width) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto split = qkv(norm1(x)).unflatten(-1, {3, heads, -1}).permute({2, 0, 3, 1, 4});
    auto attended = at::scaled_dot_product_attention(split[0], split[1], split[2], {}, 0.0, true);
    x = x + torch::dropout(out(attended.transpose(1, 2).flatten(2)), 0.1, is_training());
    return x + torch::dropout(down(torch::gelu(up(norm2(x)))), 0.1, is_training());
  }

  std::int64_t heads;
  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(Block);

bimetal::task::Model make_model(std::int64_t layers, std::int64_t width, std::int64_t heads) {
  using bimetal::task::make_unit;
  bimetal::task::Model model;
  const auto table = torch::nn::Embedding(kVocabulary, width).ptr();
  model.units.push_back(
      make_unit("embedding", table, [=](torch::Tensor ids) { return table->forward(ids); }));
  for (std::int64_t i = 0; i < layers; ++i) {
    const auto block = Block(width, heads).ptr();
    model.units.push_back(make_unit("block" + std::to_string(i), block,
                                    [=](torch::Tensor x) { return block->forward(x); }));
  }
  const auto head = torch::nn::Linear(width, kVocabulary).ptr();
  model.units.push_back(make_unit("head", head, [=](torch::Tensor x) { return head->forward(x); }));
  return model;
}

/// A line of /proc/self/status, in bytes.
std::int64_t memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return 1024 * std::stoll(line.substr(field.size() + 1));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 8) return 2;
  const auto number = [&](std::size_t i) { return std::stoll(arguments[i]); };
  at::set_num_threads(static_cast<int>(number(7)));
  torch::manual_seed(1);
  const auto model = make_model(number(1), number(2), number(3));
  model.train();
  const bimetal::task::Segments segments(
      model, bimetal::train::recomputed_at_once(arguments[0], model.units.size()));
  const auto ids = torch::randint(kVocabulary, {number(5), number(4)});
  const auto step = [&] {
    // As in Python, the logits are gone before backward, which does not need them.
    const auto loss =
        torch::cross_entropy_loss(segments.run({ids}).front().flatten(0, 1), ids.flatten());
    loss.backward();
  };
  step();  // gradients stay from here on
  const auto before = memory("VmRSS");
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark begins anew
  std::vector<double> seconds;
  for (int i = 0; i < number(6); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
  std::cout << seconds[seconds.size() / 2] << " " << memory("VmHWM") - before << "\n";
}
