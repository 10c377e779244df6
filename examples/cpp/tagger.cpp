// Sequences of unequal length: an LSTM gives each letter of a word a class. The loss is a mean over
// letters, so a word weighs as many as it has, and the result is that of a single device.
//
//   ./tagger                                                                       alone
//   BIMETAL_WORKER="cpu:threads=3; cpu:threads=1" torchrun --no-python --nproc-per-node 2 ./tagger

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

struct TaggerImpl : torch::nn::Module {
  torch::nn::Embedding letters{27, 16};
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(16, 24).batch_first(true)};
  torch::nn::Linear head{24, 3};

  TaggerImpl() {
    register_module("letters", letters);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor words) {
    return head(std::get<0>(lstm(letters(words)))).flatten(0, 1);
  }
};
TORCH_MODULE(Tagger);

int main(int argc, char** argv) try {
  constexpr std::int64_t kWords = 120, kLongest = 9, kNoTarget = -100;
  auto job = bimetal::init(argc, argv);
  torch::manual_seed(1);  // the same data on every rank
  const auto lengths = torch::randint(1, kLongest + 1, {kWords, 1}, torch::kInt64);
  const auto there = torch::arange(kLongest).unsqueeze(0) < lengths;
  const auto words = torch::randint(1, 27, {kWords, kLongest}, torch::kInt64) * there;
  const auto tags = (words.cumsum(1) % 3).masked_fill(there.logical_not(), kNoTarget);
  const auto* first = lengths.data_ptr<std::int64_t>();
  const auto data = std::make_shared<bimetal::TensorDataset>(
      bimetal::Values{words, tags}, std::vector<std::int64_t>(first, first + kWords));

  auto model = Tagger();
  if (argc > 1 && argv[1] == std::string("float64")) model->to(torch::kFloat64);
  bimetal::DataParallel trainer(model, job);
  torch::optim::Adam adam(trainer.parameters(), 0.01);
  const auto loss = [&](const bimetal::Batch& piece, at::Reduction::Reduction reduction) {
    return torch::cross_entropy_loss(model->forward(piece.x), piece.y.flatten(), {}, reduction,
                                     kNoTarget);
  };
  for (auto& batch : job.balanced(data, {.global_batch = 20, .epochs = 4})) {
    trainer.step(loss(batch, at::Reduction::Mean), adam);
  }
  const auto told = trainer.evaluate(data, [&](const bimetal::Batch& batch) {
    return bimetal::Values{loss(batch, at::Reduction::Sum)};
  });
  if (job.rank() == 0) std::printf("loss %.4f\n", told.loss);
  trainer.save_model("tagger.safetensors");
} catch (const std::exception& error) {
  std::fprintf(stderr, "tagger: %s\n", error.what());
  return 1;
}
