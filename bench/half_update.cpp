// AdamW's update of a model that two ranks, threads with a core each, have in shards (ZeRO's level
// 1): `half_update [--layers N] [--width W] [--rounds R]`. Prints milliseconds from summed
// gradients to the weights that the next forward multiplies with, in bfloat16 on both ranks, and
// their ratio to the last way: weights whole in float32, of which autocast makes copies; whole in
// bfloat16, each piece rounded once it is stepped; the same with the rounding in the loop of the
// step. Clipping's factor is in the loop in all of them. Every figure is the median of R rounds, in
// which all take turns.

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/optim/cpu_adam.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "support/thread_ranks.h"

namespace {

using namespace bimetal;
using parallel::shard::ShardedModel;

struct Size {
  int layers = 12;
  std::int64_t width = 1536;
};

task::Model make_layers(const Size& size) {
  task::Model model;
  for (int i = 0; i < size.layers; ++i) {
    auto layer = std::make_shared<torch::nn::LinearImpl>(size.width, size.width);
    model.units.push_back(
        task::make_unit("layer" + std::to_string(i), layer,
                        [layer](torch::Tensor input) { return layer->forward(input); }));
  }
  return model;
}

enum class Way { Copies, Rounded, Merged };

/// One rank's of one way.
class Trained {
 public:
  Trained(Way way, const Size& size, const comm::Group& group)
      : way_(way),
        sharded_(std::make_shared<ShardedModel>(make_layers(size), group, options(way))) {
    std::vector<torch::Tensor> pieces;
    for (const auto& piece : sharded_->pieces()) {
      pieces.push_back(piece.tensor);
      pieces.back().mutable_grad() = torch::randn_like(piece.tensor);
    }
    optimizer_ = std::make_unique<optim::CpuAdamW>(
        pieces, torch::optim::AdamWOptions(1e-4).weight_decay(0.1));
    optimizer_->set_gradient_factor(0.999);
    follow_update(sharded_, *optimizer_);
    if (way != Way::Rounded) return;
    optimizer_->set_bfloat16([](const torch::Tensor&) { return torch::Tensor(); });
    optimizer_->set_after_parameter([sharded = sharded_](const torch::Tensor& piece) {
      sharded->bfloat16_of(piece).copy_(piece);
      sharded->updated(piece);
    });
  }

  void update() {
    optimizer_->step();
    sharded_->after_update();
    if (way_ != Way::Copies) return;
    // All of them are there until backward is through.
    std::vector<torch::Tensor> copies;
    for (const auto& parameter : sharded_->trained()) {
      copies.push_back(parameter.tensor.to(torch::kBFloat16));
    }
  }

 private:
  static parallel::shard::ShardedModelOptions options(Way way) {
    parallel::shard::ShardedModelOptions options{.level = 1, .weights = {1, 1}};
    if (way != Way::Copies) options.form.half = torch::kBFloat16;
    return options;
  }

  Way way_;
  std::shared_ptr<ShardedModel> sharded_;
  std::unique_ptr<optim::CpuAdamW> optimizer_;
};

double median(std::vector<double>& seconds) {
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

void measure(const Size& size, int rounds, int rank, const comm::Group& group) {
  const torch::NoGradGuard no_grad;
  const std::vector<std::string> names = {"float32, and autocast's copies",
                                          "bfloat16, rounded behind the step",
                                          "bfloat16, rounded in its loop"};
  std::vector<std::unique_ptr<Trained>> ways;
  for (const auto way : {Way::Copies, Way::Rounded, Way::Merged}) {
    ways.push_back(std::make_unique<Trained>(way, size, group));
    ways.back()->update();  // memory is fetched, states are made
  }
  std::vector<std::vector<double>> seconds(ways.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const Stopwatch watch;
      ways[way]->update();
      seconds[way].push_back(watch.seconds());
    }
  }
  if (rank != 0) return;
  for (std::size_t way = 0; way < ways.size(); ++way) {
    fmt::print("{:<36}{:8.1f} ms{:8.2f}\n", names[way], 1e3 * median(seconds[way]),
               median(seconds[way]) / median(seconds.back()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Size size;
  int rounds = 15;
  CLI::App app("The update of weights that are multiplied with in bfloat16");
  app.add_option("--layers", size.layers);
  app.add_option("--width", size.width);
  app.add_option("--rounds", rounds);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  fmt::print("{} layers of {} x {}, two ranks\n", size.layers, size.width, size.width);
  testing::run_ranks(2, [&](int rank, comm::Group group) { measure(size, rounds, rank, group); });
}
