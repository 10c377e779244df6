#pragma once
// Ranks that learn a few steps on any device, with what may disturb these, and what they have then.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bimetal/c10d/island.h"
#include "bimetal/data/prefetch.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/task.h"
#include "bimetal/train/step.h"
#include "support/thread_ranks.h"
#include "support/vendor_stand_in.h"

namespace bimetal::train::test {

inline constexpr std::int64_t kSamples = 8;

inline data::ImageDataset noise() {
  data::ImageDataset set;
  const auto numbers = torch::arange(16 * 8 * 8);
  set.images = (numbers * 37).remainder(251).to(torch::kUInt8).view({16, 1, 8, 8});
  set.labels = torch::arange(16).remainder(10);
  return set;
}

struct Asked {
  std::string model = "mlp";
  std::string optimizer = "adamw";
  std::int64_t norm_group = 0;
  std::int64_t epochs = 2;  ///< of two steps
  int level = 0;            ///< of ZeRO
  bool island = false;      ///< of two ranks
  /// By step, from 1 on; empty: equal ones.
  std::function<std::vector<std::int64_t>(int step)> shares = {};
  StepOptions step = {};
  std::set<int> overflows = {};  ///< steps with a gradient that is not finite
  std::set<int> too_large = {};  ///< steps for which, at first, there is no memory in backward
  std::set<int> spoilt = {};     ///< steps with a parameter that is no number, and so a loss
};

/// A rank's state after some steps, with batches from the job's own feed.
struct Learnt {
  std::vector<torch::Tensor> parameters, buffers;
  std::vector<progress::RankFigures> figures;  ///< the rank's, of each step
  std::vector<int> skipped;                    ///< steps
  int repeated = 0;
  double loss_scale = 1;
  bool late = false;  ///< what became of a step was learnt after the next one's launch
};

/// Does to step `number` what was asked for; gradients are multiplied by `factor`.
inline void disturb(const Asked& asked, const std::shared_ptr<const int>& number,
                    const torch::Tensor& parameter, const torch::Tensor& factor) {
  const auto refused = std::make_shared<std::set<int>>();
  parameter.register_hook([=](const torch::Tensor& gradient) {
    if (asked.too_large.contains(*number) && refused->insert(*number).second) {
      C10_THROW_ERROR(OutOfMemoryError, "of the simulated device");
    }
    return gradient * factor;
  });
}

inline constexpr std::size_t kBucketBytes = 4096;  // several

struct Store {
  parallel::Sync sync;
  std::vector<torch::Tensor> updated;  ///< by the optimizer
};

inline Store store_of(const Asked& asked, const task::Model& model, comm::Group group,
                      const parallel::ReplicatedModelOptions& given) {
  const c10d::FormIsland form_island =
      [device = model.parameters().front().device()](const comm::Group& world) {
        return c10d::form_islands(world, device, bimetal::testing::library_of(world.rank()));
      };
  if (asked.level == 0) {
    auto options = given;
    if (asked.island) options.form_island = form_island;
    return {std::make_shared<parallel::ReplicatedModel>(model, group, options), model.parameters()};
  }
  const std::vector<double> weights(static_cast<std::size_t>(group.size()), 1);
  auto shards = std::make_shared<parallel::shard::ShardedModel>(
      model, group,
      parallel::shard::ShardedModelOptions{.level = asked.level,
                                           .weights = weights,
                                           .flat_bytes = kBucketBytes,
                                           .timeout = given.timeout,
                                           .form_island = asked.island ? form_island : nullptr});
  Store store{shards, {}};
  for (const auto& piece : shards->pieces()) store.updated.push_back(piece.tensor);
  return store;
}

inline Learnt learn(const Asked& asked, const torch::Device& device, comm::Group group,
                    const std::function<void(int step)>& after_step = {}) {
  const task::ImageClassification task(asked.model, 0, {noise(), noise()}, "float64",
                                       data::Augment::No, asked.norm_group);
  const auto model = [&] {
    static std::mutex one_at_a_time;  // of the ranks, which share torch's generator
    const std::scoped_lock lock(one_at_a_time);
    torch::manual_seed(3);
    return task.make_model();
  }();
  model.to(device, torch::kFloat64);
  job::TrainConfig config;
  config.optimizer = asked.optimizer;
  config.learning_rate = 0.01;
  config.weight_decay = 0.1;
  auto parameters = model.parameters();
  const auto number = std::make_shared<int>(1);
  const auto factor = torch::ones({}, parameters.front().options().requires_grad(false));
  disturb(asked, number, parameters.front(), factor);
  auto options = asked.step;
  options.device = device;
  options.parallel.timeout = std::chrono::seconds(60);
  options.parallel.first_bucket_bytes = options.parallel.bucket_bytes = kBucketBytes;
  auto store = store_of(asked, model, group, options.parallel);
  const auto optimizer = optim::make_optimizer(config, store.updated);
  TrainingStep step(task, model, *optimizer, store.sync, options);
  data::BatchFeed feed(task.training(), data::make_sampler(*task.training(), 1), group.rank(),
                       kSamples, asked.epochs, device);
  const auto shares = [&](int of) {
    const std::vector<std::int64_t> equal(static_cast<std::size_t>(group.size()),
                                          kSamples / group.size());
    return asked.shares ? asked.shares(of) : equal;
  };
  Learnt learnt;
  const auto note = [&](const std::optional<EarlierStep>& known) {
    if (!known) return;
    EXPECT_EQ(known->number, std::ssize(learnt.figures) + 1);
    learnt.figures.push_back(known->figures.at(static_cast<std::size_t>(group.rank())));
    if (known->skipped) learnt.skipped.push_back(static_cast<int>(known->number));
  };
  feed.draw(shares(*number));
  while (feed.next()) {
    const auto plan = *feed.next();
    const bool overflows = asked.overflows.contains(*number);
    factor.fill_(overflows ? std::numeric_limits<double>::infinity() : 1.0);
    if (asked.spoilt.contains(*number)) {
      const torch::NoGradGuard no_grad;
      parameters.front().fill_(std::numeric_limits<double>::quiet_NaN());
    }
    const auto result = step.run(*number, plan.samples, [&] {
      auto batch = feed.take();
      feed.draw(shares(*number + 1));
      return batch;
    });
    note(result.earlier);
    if (!result.applied) {
      ++learnt.repeated;
      feed.rewind(plan.before);
      feed.draw(shares(*number));
      continue;
    }
    learnt.late |= result.unread;
    if (!result.unread) {
      note(EarlierStep{*number, {result.figures.begin(), result.figures.end()}, result.skipped});
    }
    if (after_step) after_step(*number);
    ++*number;
  }
  note(step.read_late());
  learnt.loss_scale = step.stages().loss_scale();
  for (const auto& parameter : model.parameters()) {
    learnt.parameters.push_back(parameter.detach().to(torch::kCPU));
  }
  for (const auto& buffer : task::tensors_of(task::ModelState(model).buffers)) {
    learnt.buffers.push_back(buffer.to(torch::kCPU));
  }
  return learnt;
}

inline Learnt alone(const Asked& asked, const torch::Device& device,
                    const std::function<void(int step)>& after_step = {}) {
  Learnt learnt;
  bimetal::testing::run_ranks(
      1, [&](int, comm::Group group) { learnt = learn(asked, device, group, after_step); });
  return learnt;
}

/// `norms`: of the gradients, which steps without a limit need not know.
inline void expect_alike(const Learnt& one, const Learnt& other, bool norms = false) {
  ASSERT_EQ(one.parameters.size(), other.parameters.size());
  for (std::size_t i = 0; i < one.parameters.size(); ++i) {
    EXPECT_LE((one.parameters[i] - other.parameters[i]).abs().max().item<double>(), 1e-12) << i;
  }
  ASSERT_EQ(one.figures.size(), other.figures.size());
  for (std::size_t i = 0; i < one.figures.size(); ++i) {
    EXPECT_NEAR(one.figures[i].loss_sum, other.figures[i].loss_sum, 1e-11) << "step " << i + 1;
    if (!norms) continue;
    if (!std::isfinite(other.figures[i].gradient_norm)) {
      EXPECT_FALSE(std::isfinite(one.figures[i].gradient_norm)) << "step " << i + 1;
      continue;
    }
    EXPECT_NEAR(one.figures[i].gradient_norm, other.figures[i].gradient_norm, 1e-11);
  }
}

inline precision::LossScalerOptions scaler() {
  return {.interval = 3};
}

}  // namespace bimetal::train::test
