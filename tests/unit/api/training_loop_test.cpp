// A training loop of the user's own, as in examples/cpp, run by real processes with torchrun's
// variables.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstdlib>

#include "bimetal/api/job.h"
#include "bimetal/base/error.h"
#include "bimetal/bimetal.h"
#include "bimetal/checkpoint/safetensors.h"
#include "unit/api/forked_ranks.h"
#include "unit/train/training_job.h"

namespace bimetal {
namespace {

using train::test::SyntheticImages;
using train::test::TemporaryFolder;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(64, 20));
    out = register_module("out", torch::nn::Linear(20, 10));
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(torch::tanh(hidden(x.flatten(1)))); }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

BalancedOptions two_epochs() {
  BalancedOptions options;
  options.global_batch = 32;
  options.epochs = 2;
  options.dtype = torch::kFloat64;
  return options;
}

/// One process's program; returns the number of steps.
std::int64_t train_and_save(const SyntheticImages& images, const BalancedOptions& options,
                            const std::filesystem::path& output, double* loss = nullptr) {
  const char* arguments[] = {"program", "--worker=cpu:threads=1"};
  auto job = init(2, arguments);
  torch::manual_seed(job.rank() == 0 ? 1 : 77);  // rank 0's parameters are what counts
  auto model = Net();
  auto trainer = DataParallel(model, job);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto data = data::idx_images("mnist", job, images.path());
  std::int64_t steps = 0;
  for (auto& batch : job.balanced(data, options)) {
    auto mean_loss = torch::nn::functional::cross_entropy(model->forward(batch.x), batch.y);
    trainer.step(mean_loss, sgd);
    steps = batch.step;
    if (loss) *loss = job.progress().loss;
  }
  if (job.rank() == 0) save(model, output);
  return steps;
}

/// Runs it as `ranks` processes; true if each did `steps` steps.
bool train_on(int ranks, const SyntheticImages& images, const BalancedOptions& options,
              const std::filesystem::path& output, std::int64_t steps) {
  const auto statuses = test::run_forked_ranks(
      ranks, [&](int) { return train_and_save(images, options, output) == steps ? 0 : 1; });
  return statuses == std::vector<int>(static_cast<std::size_t>(ranks), 0);
}

TEST(TrainingLoop, ThreeProcessesGiveTheResultOfOne) {
  const SyntheticImages images(300, 10);
  const TemporaryFolder folder;
  ASSERT_TRUE(train_on(1, images, two_epochs(), folder / "one.safetensors", 20));
  ASSERT_TRUE(train_on(3, images, two_epochs(), folder / "three.safetensors", 20));
  auto uneven = two_epochs();
  uneven.balance = balance::Policy::Fixed;
  uneven.weights = {1, 0, 4};
  ASSERT_TRUE(train_on(3, images, uneven, folder / "uneven.safetensors", 20));
  const auto one = checkpoint::read_safetensors(folder / "one.safetensors");
  for (const auto* name : {"three.safetensors", "uneven.safetensors"}) {
    const auto several = checkpoint::read_safetensors(folder / name);
    EXPECT_LT(train::test::relative_difference(several, one), 1e-12) << name;
  }
}

TEST(TrainingLoop, LearnsStopsEarlyAndReadsBackWhatItSaved) {
  const SyntheticImages images(300, 10);
  const TemporaryFolder folder;
  const auto file = folder / "model.safetensors";
  double first = 0, last = 0;
  auto options = two_epochs();
  options.steps = 1;
  EXPECT_EQ(train_and_save(images, options, file, &first), 1);
  options.epochs = 100;
  options.steps = 60;
  EXPECT_EQ(train_and_save(images, options, file, &last), 60);
  EXPECT_LT(last, first / 2);

  auto model = Net();
  load(model, file);
  EXPECT_TRUE(model->named_parameters()["hidden.weight"].equal(
      checkpoint::read_safetensors(file).at("hidden.weight")));
}

TEST(TrainingLoop, ForgottenStepIsAnErrorAndNoHang) {
  const SyntheticImages images(100, 10);
  auto job = init();
  auto data = data::idx_images("mnist", job, images.path());
  EXPECT_THROW(
      {
        for (auto& batch : job.balanced(data, two_epochs())) ASSERT_GT(batch.y.size(0), 0);
      },
      Error);
}

TEST(TrainingLoop, SecondStepForOneBatchIsAnError) {
  const SyntheticImages images(100, 10);
  auto job = init();
  auto model = Net();
  auto trainer = DataParallel(model, job);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto data = data::idx_images("mnist", job, images.path());
  for (auto& batch : job.balanced(data, two_epochs())) {
    const auto loss = [&] {
      return torch::nn::functional::cross_entropy(model->forward(batch.x), batch.y);
    };
    trainer.step(loss(), sgd);
    EXPECT_THROW(trainer.step(loss(), sgd), Error);
    break;
  }
}

using ::testing::HasSubstr;

TEST(Job, ProcessThatNothingStartedIsAJobOfOne) {
  const auto job = init();
  EXPECT_EQ(job.rank(), 0);
  EXPECT_EQ(job.world_size(), 1);
  std::vector<float> value = {3};
  job.group().all_reduce(comm::buffer(std::span(value))).wait();
  EXPECT_EQ(value[0], 3);
}

TEST(Job, TakesTheDeviceFromTheArguments) {
  const char* arguments[] = {"program", "--steps", "3", "--worker", "cpu:threads=1"};
  EXPECT_TRUE(init(5, arguments).device().is_cpu());
  EXPECT_EQ(torch::get_num_threads(), 1);
  const char* joined[] = {"program", "--worker=cpu:threads=1"};
  EXPECT_TRUE(init(2, joined).device().is_cpu());
}

TEST(Job, RefusesADeviceThatMakesNoSense) {
  const char* nonsense[] = {"program", "--worker=toaster"};
  EXPECT_THROW(init(2, nonsense), Error);
  const char* missing[] = {"program", "--worker"};
  EXPECT_THROW(init(2, missing), Error);
  setenv("BIMETAL_WORKER", "cpu:speed=7", 1);
  EXPECT_THROW(init(), Error);
  unsetenv("BIMETAL_WORKER");
}

TEST(Job, RefusesHalfATorchrunEnvironment) {
  setenv("RANK", "0", 1);
  try {
    init();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("WORLD_SIZE"));
  }
  unsetenv("RANK");
}

TEST(Job, HasNoProgressBeforeItsFirstLoop) {
  EXPECT_THROW(init().progress(), Error);
}

}  // namespace
}  // namespace bimetal
