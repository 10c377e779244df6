// A model whose tensors are in parts: two ranks compute each layer together.
//
//   ./parts                                                                        alone
//   BIMETAL_WORKER="cpu:threads=3; cpu:threads=1" torchrun --no-python --nproc-per-node 2 ./parts

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

namespace nn = torch::nn;

/// Alone it is any other module. In parts `up` has some of its columns, and `down` their rows.
struct Mlp : nn::Module {
  nn::Linear up = register_module("up", nn::Linear(16, 64));
  nn::Linear down = register_module("down", nn::Linear(64, 16));
  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = torch::gelu(up(bimetal::shared_by_tensor_ranks(x)));
    return x + bimetal::sum_over_tensor_ranks(torch::linear(inner, down->weight)) + down->bias;
  }
};

bimetal::Unit mlp(const std::string& name) {
  const auto module = std::make_shared<Mlp>();
  auto unit =
      bimetal::make_unit(name, module, [module](torch::Tensor x) { return module->forward(x); });
  unit.splits = {{name + ".up.weight", 0}, {name + ".up.bias", 0}, {name + ".down.weight", 1}};
  return unit;
}

int main(int argc, char** argv) try {
  const bool wide = argc > 1 && argv[1] == std::string("float64");
  auto job = bimetal::init(argc, argv);
  torch::manual_seed(1);  // the same data on every rank
  const auto x = torch::randn({160, 16}, wide ? torch::kFloat64 : torch::kFloat32);
  const auto y = (x * x).sum(1).gt(16).to(torch::kInt64);
  const auto data = std::make_shared<bimetal::TensorDataset>(bimetal::Values{x, y});

  const nn::Linear head(16, 2);
  bimetal::Model model{{mlp("a"), mlp("b"), bimetal::units_of(head).units.front()}};
  model.to(torch::kCPU, x.scalar_type());
  const int ranks = std::min(2, job.world_size());
  std::vector<double> sizes = {3, 1};  // of the parts: the first rank is the faster one
  sizes.resize(static_cast<std::size_t>(ranks));
  bimetal::Pipeline trainer(model, job, {.stages = 1, .tensor = ranks, .tensor_weights = sizes});
  torch::optim::AdamW adam(trainer.parameters(), 3e-3);  // of this rank's parts
  for (auto& batch : job.balanced(data, {.global_batch = 32, .epochs = 4})) {
    trainer.step(adam, [](const bimetal::Values& outputs, const bimetal::Batch& piece) {
      return torch::cross_entropy_loss(outputs[0], piece.y);
    });
    if (job.rank() == 0) std::printf("step %d  loss %.4f\n", int(batch.step), job.progress().loss);
  }
  trainer.save_model("parts.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "parts: %s\n", error.what());
  return 1;
}
