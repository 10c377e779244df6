// A model that no rank keeps whole (ZeRO, level 3), and a training that goes on with its last
// checkpoint, on any number of ranks.
//
//   ./zero                                                                         alone
//   BIMETAL_WORKER="cpu:threads=3; cpu:threads=1" torchrun --no-python --nproc-per-node 2 ./zero

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace nn = torch::nn;

int main(int argc, char** argv) try {
  const bool wide = argc > 1 && argv[1] == std::string("float64");
  const auto steps = argc > 2 ? std::atoll(argv[2]) : 0;  // 0: until the epochs are over
  auto job = bimetal::init(argc, argv);
  torch::manual_seed(1);  // the same data on every rank
  const auto x = torch::randn({200, 16}, wide ? torch::kFloat64 : torch::kFloat32);
  const auto y = (x * x).sum(1).gt(16).to(torch::kInt64);
  const auto data = std::make_shared<bimetal::TensorDataset>(bimetal::Values{x, y});

  // Each layer is gathered when it is needed, and let go again.
  nn::Sequential model(nn::Linear(16, 64), nn::GELU(), nn::LayerNorm(nn::LayerNormOptions({64})),
                       nn::Linear(64, 64), nn::GELU(), nn::Linear(64, 2));
  model->to(x.scalar_type());
  bimetal::DataParallel trainer(model, job, {.limits = {.norm = 1.0}, .zero = {.level = 3}});
  torch::optim::AdamW adam(trainer.parameters(), 3e-3);  // of this rank's pieces
  const auto at = trainer.resume("zero-checkpoints", adam);
  if (at && job.rank() == 0) std::printf("goes on after step %d\n", int(at->step));
  for (auto& batch :
       job.balanced(data, {.global_batch = 40, .epochs = 4, .from = at, .steps = steps})) {
    trainer.step(adam, [&](const bimetal::Batch& piece) {
      return torch::cross_entropy_loss(trainer.forward(piece.x), piece.y);
    });
    if (job.rank() == 0) std::printf("step %d  loss %.4f\n", int(batch.step), job.progress().loss);
    if (batch.step % 5 == 0) trainer.save("zero-checkpoints", adam);
  }
  const auto told = trainer.evaluate(
      data,
      [&](const bimetal::Batch& batch) {
        const auto logits = trainer.forward(batch.x);
        return bimetal::Values{torch::cross_entropy_loss(logits, batch.y, {}, at::Reduction::Sum),
                               (logits.argmax(1) == batch.y).sum()};
      },
      {"accuracy"});
  if (job.rank() == 0) std::printf("accuracy %.3f\n", told.metrics.front().value);
  trainer.save_model("zero.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "zero: %s\n", error.what());
  return 1;
}
