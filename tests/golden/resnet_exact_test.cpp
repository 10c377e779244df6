// The same promise for a residual network with group normalisation, against one device that
// computes each batch whole.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <ostream>
#include <string>
#include <vector>

#include "golden/server_job.h"
#include "golden/tasks.h"
#include "golden/training_run.h"

namespace bimetal::golden {
namespace {

/// 200 images in batches of 24: the ninth step, the epoch's last, has 8.
constexpr std::int64_t batch = 24;
constexpr int steps = 12;

const TrainingResult& alone() {
  static const auto result = [] {
    const auto task = make_task({.learns = Learns::resnet});
    const auto model = make_start(*task, seed + 100);
    torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
    data::EpochSampler sampler(sample_count, seed);
    TrainingResult trained;
    for (int step = 0; step < steps; ++step) {
      const auto samples = sampler.next(std::vector<std::int64_t>{batch});
      sgd.zero_grad();
      const auto loss = mean_loss(*task, model, samples.epoch, samples.indices);
      loss.backward();
      sgd.step();
      trained.losses.push_back(loss.item<double>());
    }
    trained.parameters = model.parameters();
    return trained;
  }();
  return result;
}

struct ResNetCase {
  std::string name;
  std::vector<std::vector<std::int64_t>> shares;
  std::int64_t micro_batch = 1000;
};

void PrintTo(const ResNetCase& shown, std::ostream* out) {
  *out << shown.name;
}

const ResNetCase cases[] = {
    {"OneWorker", {{24}}},
    {"OneWorkerInMicroBatches", {{24}}, 5},
    {"TwoWorkers", {{17, 7}}},
    {"TwoWorkersOneAtRest", {{24, 0}, {5, 19}, {0, 24}}},
    {"ThreeWorkersInMicroBatches", {{13, 11, 0}, {0, 23, 1}, {8, 8, 8}}, 4},
};

class ResNetExact : public ::testing::TestWithParam<ResNetCase> {};

TEST_P(ResNetExact, ParametersAgreeWithOneDevice) {
  const auto trained = train({.learns = Learns::resnet,
                              .shares = GetParam().shares,
                              .steps = steps,
                              .micro_batch = GetParam().micro_batch});
  EXPECT_LE(largest_difference(trained.parameters, alone().parameters), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Shares, ResNetExact, ::testing::ValuesIn(cases),
                         [](const auto& param) { return param.param.name; });

// The test must be able to fail.
TEST(ResNetExactness, TheTrainingIsNotTrivial) {
  EXPECT_LT(alone().losses.back(), 0.97 * alone().losses.front());
  const auto other_batch = train({.learns = Learns::resnet, .shares = {{25}}, .steps = steps});
  EXPECT_GT(largest_difference(other_batch.parameters, alone().parameters), 1e-4);
}

}  // namespace
}  // namespace bimetal::golden
