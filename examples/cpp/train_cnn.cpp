// Trains a small CNN on Fashion-MNIST, on as many unlike devices as take part:
//
//   ./train_cnn                                               alone
//   torchrun --no-python --nproc-per-node 2 ./train_cnn       two workers on this machine
//
// Each worker takes the device of `--worker SPEC`, say cpu:threads=1, cuda:0 or mps.

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

struct CnnImpl : torch::nn::Module {
  torch::nn::Sequential layers{torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 32, 3).padding(1)),
                               torch::nn::ReLU(),
                               torch::nn::MaxPool2d(2),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(32, 64, 3).padding(1)),
                               torch::nn::ReLU(),
                               torch::nn::MaxPool2d(2),
                               torch::nn::Flatten(),
                               torch::nn::Linear(64 * 7 * 7, 128),
                               torch::nn::ReLU(),
                               torch::nn::Linear(128, 10)};

  CnnImpl() { register_module("layers", layers); }
  torch::Tensor forward(torch::Tensor x) { return layers->forward(x); }
};
TORCH_MODULE(Cnn);

std::string option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (name == argv[i]) return argv[i + 1];
  }
  return otherwise;
}

int main(int argc, char** argv) try {
  const auto steps = std::atoll(option(argc, argv, "--steps", "0").c_str());
  const auto output = option(argc, argv, "--output", "cnn.safetensors");

  auto job = bimetal::init(argc, argv);
  auto model = Cnn();
  auto trainer = bimetal::DataParallel(model, job);
  torch::optim::SGD sgd(model->parameters(), 0.05);
  auto data = bimetal::data::idx_images("fashion-mnist", job);
  for (auto& batch : job.balanced(data, {.global_batch = 512, .epochs = 3, .steps = steps})) {
    auto loss = torch::nn::functional::cross_entropy(model->forward(batch.x), batch.y);
    trainer.step(loss, sgd);
    if (job.rank() == 0 && batch.step % 20 == 0) {
      std::printf("step %lld  loss %.4f  %.0f images/s  efficiency %.2f\n",
                  static_cast<long long>(batch.step), job.progress().loss,
                  job.progress().samples_per_s, job.progress().efficiency);
    }
  }
  if (job.rank() == 0) bimetal::save(model, output);
  return 0;
} catch (const bimetal::Error& error) {
  std::fprintf(stderr, "train_cnn: %s\n", error.what());
  return 1;
}
