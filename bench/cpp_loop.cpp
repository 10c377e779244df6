// An own loop in C++ by the front door: `cpp_loop cnn|gpt GLOBAL_BATCH STEPS`. Rank 0 prints the
// samples and seconds of the steps after the first three as JSON. For cpp_loop.py.

#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/bimetal.h"

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kWidth = 256, kHeads = 4, kContext = 64, kWords = 2000, kBlocks = 4;
constexpr std::int64_t kWarmUp = 3;

nn::Sequential make_cnn() {
  const auto conv = [](int from, int to) {
    return nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1));
  };
  return nn::Sequential(conv(1, 32), nn::ReLU(), nn::MaxPool2d(2), conv(32, 64), nn::ReLU(),
                        nn::MaxPool2d(2), nn::Flatten(), nn::Linear(64 * 7 * 7, 128), nn::ReLU(),
                        nn::Linear(128, 10));
}

struct BlockImpl : nn::Module {
  nn::LayerNorm first{nn::LayerNormOptions({kWidth})}, second{nn::LayerNormOptions({kWidth})};
  nn::Linear qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth}, up{kWidth, 4 * kWidth},
      down{4 * kWidth, kWidth};

  BlockImpl() {
    register_module("first", first);
    register_module("second", second);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0);
    const auto parts =
        qkv(first(x)).view({batch, kContext, 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const auto mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).reshape({batch, kContext, kWidth}));
    return x + down(torch::gelu(up(second(x))));
  }
};
TORCH_MODULE(Block);

struct GptImpl : nn::Module {
  nn::Embedding words{kWords, kWidth}, places{kContext, kWidth};
  nn::Sequential blocks;
  nn::LayerNorm last{nn::LayerNormOptions({kWidth})};
  nn::Linear head{nn::LinearOptions(kWidth, kWords).bias(false)};

  GptImpl() {
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    register_module("words", words);
    register_module("places", places);
    register_module("blocks", blocks);
    register_module("last", last);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    return head(last(blocks->forward(words(x) + places(torch::arange(kContext)))));
  }
};
TORCH_MODULE(Gpt);

template <typename Model>
void train(Model model, torch::Tensor x, torch::Tensor y,
           std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<torch::Tensor>),
           const bimetal::Job& job, std::int64_t batch, std::int64_t steps) {
  const auto data = std::make_shared<bimetal::TensorDataset>(bimetal::Values{x, y});
  bimetal::DataParallel trainer(model, job, {.micro_batch = batch});
  const auto optimizer = make(trainer.parameters());
  bimetal::Stopwatch watch;
  // Equal shares by decree: the comparison is of the machinery, not of the balancing.
  for (auto& one : job.balanced(data, {.global_batch = batch,
                                      .epochs = 1000,
                                      .steps = steps + kWarmUp,
                                      .balance = bimetal::balance::Policy::Equal})) {
    trainer.step(*optimizer, [&](const bimetal::Batch& piece) {
      const auto logits = model->forward(piece.x);
      return torch::cross_entropy_loss(logits.flatten(0, -2), piece.y.flatten());
    });
    if (one.step == kWarmUp) watch = bimetal::Stopwatch();
  }
  if (job.rank() != 0) return;
  std::printf("{\"samples\": %lld, \"seconds\": %f}\n", static_cast<long long>(steps * batch),
              watch.seconds());
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::fprintf(stderr, "usage: cpp_loop cnn|gpt GLOBAL_BATCH STEPS\n");
    return 2;
  }
  const auto batch = std::atoll(argv[2]), steps = std::atoll(argv[3]);
  const auto job = bimetal::init(0, nullptr, {.worker = "cpu:threads=1"});
  torch::manual_seed(1);
  const auto samples = 16 * batch;
  if (argv[1] == std::string("cnn")) {
    train(
        make_cnn(), torch::randn({samples, 1, 28, 28}),
        torch::randint(10, {samples}, torch::kInt64),
        [](std::vector<torch::Tensor> of) -> std::unique_ptr<torch::optim::Optimizer> {
          return std::make_unique<torch::optim::SGD>(std::move(of),
                                                     torch::optim::SGDOptions(0.05).momentum(0.9));
        },
        job, batch, steps);
  } else {
    const auto text = torch::randint(kWords, {samples, kContext + 1}, torch::kInt64);
    train(
        Gpt(), text.narrow(1, 0, kContext).contiguous(), text.narrow(1, 1, kContext).contiguous(),
        [](std::vector<torch::Tensor> of) -> std::unique_ptr<torch::optim::Optimizer> {
          return std::make_unique<bimetal::AdamW>(std::move(of), 1e-4);
        },
        job, batch, steps);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "cpp_loop: %s\n", error.what());
  return 1;
}
