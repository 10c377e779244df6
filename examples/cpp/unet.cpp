// A loop of one's own with half precision, clipping and gradient accumulation: a U-Net finds the
// bright parts of images.
//
//   ./unet                                                                         alone
//   BIMETAL_WORKER="cpu:threads=3; cpu:threads=1" torchrun --no-python --nproc-per-node 2 ./unet

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <cstdio>

struct UNetImpl : torch::nn::Module {
  static torch::nn::Conv2d conv(int from, int to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1));
  }
  torch::nn::Conv2d down = conv(1, 8), middle = conv(8, 16), up = conv(24, 8), head = conv(8, 1);

  UNetImpl() {
    register_module("down", down);
    register_module("middle", middle);
    register_module("up", up);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto skip = torch::relu(down(x));
    const auto deep = torch::relu(middle(torch::max_pool2d(skip, 2)));
    const auto wide = torch::upsample_nearest2d(deep, {x.size(2), x.size(3)});
    return head(torch::relu(up(torch::cat({skip, wide}, 1))));
  }
};
TORCH_MODULE(UNet);

int main(int argc, char** argv) try {
  const std::string dtype = argc > 1 ? argv[1] : "bfloat16";  // or float64, and then all is
  const bool wide = dtype == "float64";
  auto job = bimetal::init(argc, argv);
  torch::manual_seed(1);  // the same data on every rank
  const auto x = torch::rand({96, 1, 16, 16}, wide ? torch::kFloat64 : torch::kFloat32);
  const auto y = (torch::avg_pool2d(x, 3, 1, 1) > 0.5).to(x.dtype());
  const auto data = std::make_shared<bimetal::TensorDataset>(bimetal::Values{x, y});

  auto model = UNet();
  model->to(x.scalar_type());
  bimetal::DataParallel trainer(
      model, job,
      {.micro_batch = 4,  // so many at once: gradients are accumulated
       .precision = bimetal::precision::precision_named(wide ? "float32" : dtype),
       .limits = {.norm = 1.0}});
  torch::optim::AdamW adam(trainer.parameters(), 3e-3);
  for (auto& batch : job.balanced(data, {.global_batch = 24, .epochs = 5})) {
    trainer.step(adam, [&](const bimetal::Batch& piece) {
      return torch::binary_cross_entropy_with_logits(model->forward(piece.x), piece.y);
    });
    if (job.rank() == 0) std::printf("step %d  loss %.4f\n", int(batch.step), job.progress().loss);
  }
  trainer.save_model("unet.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "unet: %s\n", error.what());
  return 1;
}
