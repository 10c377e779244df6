// A model in two stages, each on a rank of its own, which compute micro-batches in turn.
//
//   ./pipeline                                                                     alone
//   BIMETAL_WORKER="cpu:threads=3; cpu:threads=1" torchrun --no-python --nproc-per-node 2
//   ./pipeline

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>

namespace nn = torch::nn;

int main(int argc, char** argv) try {
  const bool wide = argc > 1 && argv[1] == std::string("float64");
  auto job = bimetal::init(argc, argv);
  torch::manual_seed(1);  // the same data on every rank
  const auto x = torch::randn({160, 16}, wide ? torch::kFloat64 : torch::kFloat32);
  const auto y = (x * x).sum(1).gt(16).to(torch::kInt64);
  const auto data = std::make_shared<bimetal::TensorDataset>(bimetal::Values{x, y});

  // Each layer is a unit, and the model may be cut between any two.
  nn::Sequential model(nn::Linear(16, 64), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({64})),
                       nn::Linear(64, 64), nn::GELU(), nn::Linear(64, 2));
  model->to(x.scalar_type());
  bimetal::Pipeline trainer(bimetal::units_of(model), job,
                            {.stages = std::min(2, job.world_size()), .micro_batches = 4});
  torch::optim::AdamW adam(trainer.parameters(), 3e-3);  // of this rank's stage
  for (auto& batch : job.balanced(data, {.global_batch = 32, .epochs = 4})) {
    trainer.step(adam, [](const bimetal::Values& outputs, const bimetal::Batch& piece) {
      return torch::cross_entropy_loss(outputs[0], piece.y);
    });
    if (job.rank() == 0) std::printf("step %d  loss %.4f\n", int(batch.step), job.progress().loss);
  }
  const auto told =
      trainer.evaluate(data,
                       [](const bimetal::Values& outputs, const bimetal::Batch& batch) {
                         return bimetal::Values{
                             torch::cross_entropy_loss(outputs[0], batch.y, {}, at::Reduction::Sum),
                             (outputs[0].argmax(1) == batch.y).sum()};
                       },
                       {"accuracy"});
  if (job.rank() == 0) std::printf("accuracy %.3f\n", told.metrics.front().value);
  trainer.save_model("pipeline.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "pipeline: %s\n", error.what());
  return 1;
}
