// The memory in a stage's plan, beside the memory that libtorch has allocated.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/parallel/shard/sharded_model.h"
#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/precision/precision.h"
#include "bimetal/task/segments.h"
#include "bimetal/train/measure/dry_run.h"
#include "bimetal/train/measure/unit_measure.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

constexpr std::size_t kUnits = 8;
constexpr std::int64_t kWidth = 256, kRows = 64, kAtOnce = 8;

class Rows final : public task::Dataset {
 public:
  explicit Rows(std::int64_t rows) : rows_(rows) {}
  std::int64_t size() const override { return 64; }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    const auto count = static_cast<std::int64_t>(samples.size());
    return {torch::ones({count, rows_, kWidth}), torch::zeros({count})};
  }

 private:
  std::int64_t rows_;
};

/// Residual blocks of two matrices, and of a third that is not trained where `frozen`; the first
/// and the last then have one more in common.
class Blocks final : public task::Task {
 public:
  explicit Blocks(bool frozen = false, std::int64_t rows = kRows) : frozen_(frozen), rows_(rows) {}

  task::Model make_model() const override {
    const auto make = [](bool trained) {
      return (torch::ones({kWidth, kWidth}) / kWidth).set_requires_grad(trained);
    };
    const auto table = make(false);
    task::Model model;
    for (std::size_t u = 0; u < kUnits; ++u) {
      const auto in = make(true), out = make(true), still = make(false);
      const auto name = std::to_string(u);
      std::vector<task::NamedTensor> parameters = {{name + ".in", in}, {name + ".out", out}};
      if (frozen_) parameters.push_back({name + ".still", still});
      if (frozen_ && u % (kUnits - 1) == 0) parameters.push_back({"table", table});
      model.units.push_back({.name = name,
                             .parameters = std::move(parameters),
                             .buffers = {},
                             .forward =
                                 [=, frozen = frozen_](const task::Values& values) {
                                   const auto& x = values.front();
                                   const auto read = frozen ? x.sin().matmul(still) : x;
                                   return task::Values{x + read.matmul(in).tanh().matmul(out)};
                                 },
                             .products = {name + ".in", name + ".out"}});
    }
    return model;
  }
  std::shared_ptr<const task::Dataset> training() const override {
    return std::make_shared<Rows>(rows_);
  }
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values&) const override {
    return outputs.front().sum();
  }

 private:
  bool frozen_;
  std::int64_t rows_;
};

plan::ModelFacts facts_of(const Blocks& task,
                          precision::Precision precision = precision::Precision::float32) {
  job::TrainConfig job;
  job.optimizer = "adam";
  job.global_batch = job.micro_batch = kAtOnce;
  return measure_units(job, task, {.on = {.precision = precision}, .timed = Timed::nothing})
      .value();
}

task::Model part_of(const task::Model& model, const plan::UnitRange& piece) {
  const auto first = model.units.begin();
  return {{first + static_cast<std::ptrdiff_t>(piece.begin),
           first + static_cast<std::ptrdiff_t>(piece.end)}};
}

/// The most that is allocated beside parameters in a step of five micro-batches, so many of them in
/// flight.
double measured_peak(const task::Model& part, std::size_t recomputed_at_once, int in_flight,
                     precision::Precision precision = precision::Precision::float32,
                     std::int64_t rows = kRows) {
  const precision::CastCache cache;
  const task::Segments segments(part, recomputed_at_once);
  AllocationWatch watch(torch::kCPU);
  struct Pass {
    torch::Tensor input, output;
  };
  std::deque<Pass> passes;
  const auto back = [&] {
    passes.front().output.backward(torch::ones_like(passes.front().output));
    passes.pop_front();
  };
  for (int i = 0; i < 5; ++i) {
    const auto input = torch::ones({kAtOnce, rows, kWidth}).set_requires_grad(true);
    const precision::Autocast cast(torch::kCPU, precision);
    passes.push_back({input, segments.run({input}).front()});
    if (std::ssize(passes) == in_flight) back();
  }
  while (!passes.empty()) back();
  return static_cast<double>(watch.take_peak());
}

double bytes_of(const std::vector<task::NamedTensor>& tensors, bool trained_alone = false) {
  double bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.requires_grad() || !trained_alone) bytes += static_cast<double>(tensor.nbytes());
  }
  return bytes;
}

/// The peak of a stage of five units in terms of what is planned for it.
double measured_to_planned(const Blocks& task, const plan::ModelFacts& facts,
                           std::size_t recomputed_at_once, int in_flight,
                           precision::Precision precision = precision::Precision::float32,
                           std::int64_t rows = kRows) {
  const plan::UnitRange piece{1, 6};
  const auto use = plan::stage_use(facts, std::span(&piece, 1),
                                   {.at_once = kAtOnce,
                                    .in_flight = static_cast<double>(in_flight),
                                    .keeping = {.recomputed_at_once = recomputed_at_once}});
  const auto part = part_of(task.make_model(), piece);
  return measured_peak(part, recomputed_at_once, in_flight, precision, rows) /
         (use.gradients + use.activations);
}

TEST(StagePeaks, AreThoseOfUnitsThatAreComputedAgain) {
  const Blocks task;
  const auto facts = facts_of(task);
  for (const int in_flight : {1, 3}) {
    for (const std::size_t at_once : {0, 1, 2, 3}) {
      EXPECT_NEAR(measured_to_planned(task, facts, at_once, in_flight), 1, 0.1)
          << at_once << " at once, " << in_flight << " in flight";
    }
  }
}

// If parameters take most of the memory, so do their copies in half, and the gradients of these.
TEST(StagePeaks, AreThoseOfCopiesInHalf) {
  constexpr auto kHalf = precision::Precision::bfloat16;
  constexpr std::int64_t kFewRows = 1;
  const Blocks task(/*frozen=*/false, kFewRows);
  const auto facts = facts_of(task, kHalf);
  for (const int in_flight : {1, 2, 3}) {
    for (const std::size_t at_once : {0, 1, 2}) {
      EXPECT_NEAR(measured_to_planned(task, facts, at_once, in_flight, kHalf, kFewRows), 1, 0.1)
          << at_once << " at once, " << in_flight << " in flight";
    }
  }
}

TEST(StagePeaks, FrozenParametersHaveNoGradients) {
  const Blocks task(/*frozen=*/true);
  const auto facts = facts_of(task);
  for (const plan::UnitRange& piece :
       {plan::UnitRange{0, 3}, plan::UnitRange{2, 5}, plan::UnitRange{5, 8}}) {
    const auto part = part_of(task.make_model(), piece);
    const auto use =
        plan::stage_use(facts, std::span(&piece, 1), {.at_once = kAtOnce, .in_flight = 2});
    const double trained = bytes_of(part.named_parameters(), true);
    EXPECT_EQ(use.parameters, bytes_of(part.named_parameters()));
    EXPECT_EQ(use.gradients, trained);
    EXPECT_EQ(use.optimizer, 2 * trained);
    if (piece.begin != 2) continue;  // a stage that gets activations, and hands them on
    EXPECT_NEAR(measured_peak(part, 0, 2) / (use.gradients + use.activations), 1, 0.1);
  }
}

constexpr std::int64_t kElements = 100'000;  // of each of the units below
constexpr double kUnitBytes = 4.0 * kElements;

/// Gradients as large as parameters, and activations that are nothing beside them.
task::Model parameters_alone() {
  task::Model model;
  for (int u = 0; u < 12; ++u) {
    const auto weight = torch::ones({kElements}).set_requires_grad(true);
    const auto name = std::to_string(u);
    model.units.push_back({.name = name,
                           .parameters = {{name, weight}},
                           .forward = [weight](const task::Values& values) -> task::Values {
                             return {values.front() + weight.sum()};
                           }});
  }
  return model;
}

plan::MemoryUse planned_of(double replicas, int level, double bucket) {
  plan::ModelFacts facts;
  facts.units.assign(12, {.parameters = kElements});
  const plan::UnitRange all{0, 12};
  return plan::stage_use(
      facts, std::span(&all, 1),
      {.replicas = replicas, .keeping = {.level = level}, .bucket_bytes = bucket});
}

/// Gradients, and flat tensors on their way, of three micro-batches.
double measured_gradients(comm::Group group, int level, double bucket) {
  const auto model = parameters_alone();
  parallel::shard::ShardedModel sharded(
      model, group,
      {.level = level,
       .weights = std::vector<double>(static_cast<std::size_t>(group.size()), 1.0),
       .flat_bytes = static_cast<std::size_t>(bucket),
       .folder = {},
       .timeout = std::chrono::seconds(20),
       .stage = parallel::shard::StagePasses{}});
  AllocationWatch watch(torch::kCPU);
  sharded.begin_step(1);
  sharded.expect_passes(3);
  for (int pass = 0; pass < 3; ++pass) {
    const auto loss = task::run_units(sharded.model(), {torch::zeros({})}).front();
    sharded.run_pass([&] { (loss * sharded.loss_factor()).backward(); }, pass == 2);
  }
  sharded.finish_step();
  sharded.begin_step(1);  // drops gradients
  return static_cast<double>(watch.take_peak());
}

// A rank without replicas, as level 1 is for with states on a disk: gradients, and the flat tensor
// that is being filled, but no sums beside them.
TEST(StagePeaks, GradientsOfOneReplicaAreThereOnce) {
  constexpr double kBucket = 2.5 * kUnitBytes;
  const auto use = planned_of(1, 1, kBucket);
  EXPECT_EQ(use.gradients + use.buffers, 15 * kUnitBytes);
  testing::run_ranks(1, [&](int, comm::Group group) {
    const double measured = measured_gradients(std::move(group), 1, kBucket);
    EXPECT_LE(measured, 1.01 * (use.gradients + use.buffers + kUnitBytes)) << "and one that comes";
    EXPECT_GE(measured, use.gradients + use.buffers - kUnitBytes);
  });
}

// How many are on their way depends on who comes when; a plan has room for as many as may be.
TEST(StagePeaks, ThereIsRoomForGradientsOnTheirWay) {
  for (const int level : {1, 2}) {
    for (const double bucket : {1.0, 2.5 * kUnitBytes}) {
      const auto use = planned_of(2, level, bucket);
      testing::run_ranks(testing::make_tcp_groups(2), [&](int, comm::Group group) {
        const double measured = measured_gradients(std::move(group), level, bucket);
        EXPECT_LE(measured, 1.01 * (use.gradients + use.buffers + kUnitBytes)) << level;
        EXPECT_GE(measured, use.gradients) << level;
      });
    }
  }
}

}  // namespace
}  // namespace bimetal::train
