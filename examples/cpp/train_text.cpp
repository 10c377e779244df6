// A model and data of one's own: learns the characters of proverbs, on as many unlike devices as
// take part.
//
//   ./train_text                                               alone
//   torchrun --no-python --nproc-per-node 2 ./train_text       two workers on this machine
//
// `--text FILE` takes the lines of a file instead. Lines are of unequal length, and the loss is a
// mean over characters: each sample weighs as many as it has to predict, and the result is the one
// of a single device all the same.

#include <bimetal/bimetal.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

constexpr std::int64_t kCharacters = 128, kWidth = 64, kNoTarget = -100;

std::vector<std::string> proverbs() {
  return {"all that glitters is not gold",
          "many hands make light work",
          "too many cooks spoil the broth",
          "two heads are better than one",
          "strike while the iron is hot",
          "a stitch in time saves nine",
          "a chain is no stronger than its weakest link",
          "the early bird catches the worm",
          "actions speak louder than words",
          "birds of a feather flock together",
          "well begun is half done",
          "slow and steady wins the race",
          "haste makes waste",
          "the whole is more than the sum of its parts",
          "practice makes perfect",
          "no chain without links"};
}

std::vector<std::string> lines_of(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.size() > 1) lines.push_back(line);
  }
  if (lines.empty()) {
    throw bimetal::Error(bimetal::ErrorCode::InvalidArgument, "no lines in '" + path + "'");
  }
  return lines;
}

/// A sample is a line; each of its characters but the first is to be told from those before it.
class Lines : public bimetal::Dataset {
 public:
  explicit Lines(std::vector<std::string> lines) : lines_(std::move(lines)) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(lines_.size()); }
  std::int64_t weight(std::int64_t sample) const override {
    return static_cast<std::int64_t>(lines_.at(static_cast<std::size_t>(sample)).size()) - 1;
  }
  bimetal::Values batch(std::span<const std::int64_t> samples) const override {
    std::int64_t longest = 1;
    for (const auto sample : samples) longest = std::max(longest, weight(sample));
    const auto count = static_cast<std::int64_t>(samples.size());
    auto inputs = torch::zeros({count, longest}, torch::kInt64);
    auto targets = torch::full({count, longest}, kNoTarget, torch::kInt64);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto& line = lines_.at(static_cast<std::size_t>(samples[static_cast<std::size_t>(i)]));
      for (std::size_t at = 0; at + 1 < line.size(); ++at) {
        inputs[i][static_cast<std::int64_t>(at)] = line[at] & 127;
        targets[i][static_cast<std::int64_t>(at)] = line[at + 1] & 127;
      }
    }
    return {inputs, targets};
  }

 private:
  std::vector<std::string> lines_;
};

class NextCharacter : public bimetal::Task {
 public:
  explicit NextCharacter(std::vector<std::string> lines)
      : lines_(std::make_shared<Lines>(std::move(lines))) {}

  /// Three units: embedding, GRU, and a linear layer to the logits.
  bimetal::Model make_model() const override {
    const auto table = torch::nn::Embedding(kCharacters, kWidth).ptr();
    const auto gru = torch::nn::GRU(torch::nn::GRUOptions(kWidth, kWidth).batch_first(true)).ptr();
    const auto head = torch::nn::Linear(kWidth, kCharacters).ptr();
    using bimetal::task::make_unit;
    return {{make_unit("embedding", table, [=](torch::Tensor x) { return table->forward(x); }),
             make_unit("gru", gru, [=](torch::Tensor x) { return std::get<0>(gru->forward(x)); }),
             make_unit("head", head, [=](torch::Tensor x) { return head->forward(x); })}};
  }
  std::shared_ptr<const bimetal::Dataset> training() const override { return lines_; }
  std::shared_ptr<const bimetal::Dataset> evaluation() const override { return lines_; }

  torch::Tensor loss_sum(const bimetal::Values& outputs,
                         const bimetal::Values& batch) const override {
    return torch::cross_entropy_loss(outputs.front().flatten(0, 1), batch.back().flatten(), {},
                                     at::Reduction::Sum, kNoTarget);
  }
  std::vector<bimetal::Metric> metrics() const override {
    return {{.name = "perplexity", .of_mean = [](double loss) { return std::exp(loss); }}};
  }

 private:
  std::shared_ptr<const Lines> lines_;
};

std::string option(int argc, char** argv, const std::string& name, const std::string& otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (name == argv[i]) return argv[i + 1];
  }
  return otherwise;
}

int main(int argc, char** argv) try {
  const auto steps = std::atoll(option(argc, argv, "--steps", "200").c_str());
  const auto output = option(argc, argv, "--output", "text.safetensors");
  const auto text = option(argc, argv, "--text", "");

  auto job = bimetal::init(argc, argv);
  auto task = std::make_shared<NextCharacter>(text.empty() ? proverbs() : lines_of(text));
  auto trainer = bimetal::DataParallel(task, job);
  torch::optim::Adam adam(trainer.parameters(), 3e-3);
  for (auto& batch :
       job.balanced(task->training(), {.global_batch = 8, .epochs = 1000, .steps = steps})) {
    trainer.step(adam);
    if (job.rank() == 0 && batch.step % 50 == 0) {
      std::printf("step %lld  loss %.4f  %.0f characters/s  efficiency %.2f\n",
                  static_cast<long long>(batch.step), job.progress().loss,
                  job.progress().samples_per_s, job.progress().efficiency);
    }
  }
  const auto evaluation = trainer.evaluate();
  if (job.rank() == 0) {
    for (const auto& [name, value] : evaluation.metrics) {
      std::printf("%s %.3f\n", name.c_str(), value);
    }
    bimetal::save(trainer.model(), output);
  }
  return 0;
} catch (const bimetal::Error& error) {
  std::fprintf(stderr, "train_text: %s\n", error.what());
  return 1;
}
