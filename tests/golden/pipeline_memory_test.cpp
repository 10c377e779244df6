// If a rank of a pipeline runs out of memory, at any point of a step and in any company, all ranks
// take smaller micro-batches, and the training's result stays the same.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/data/prefetch.h"
#include "bimetal/train/step.h"
#include "golden/stage_worker.h"
#include "golden/tasks.h"
#include "support/thread_ranks.h"

namespace bimetal::golden {
namespace {

enum class Moment { before, behind, in_backward };

/// No memory on rank `rank` for more than six samples at once in unit `unit`, which is one of its
/// own.
struct Narrow {
  std::string name;
  TrainingPlan plan;
  int rank;
  std::size_t unit;
  Moment moment = Moment::before;
};

void PrintTo(const Narrow& shown, std::ostream* out) {
  *out << shown.name;
}

TrainingPlan narrow_plan(Learns learns, std::int64_t cut, std::vector<double> tensor = {}) {
  return {.learns = learns,
          .shares = {{24}},
          .steps = 4,
          .tensor = std::move(tensor),
          .mesh = {.stages = 2},
          .cuts = {cut},
          .micro_batches = 2};
}

/// Gradients then go with word of whether there are any, also to stages that have sent nothing.
void add_of_uneven_parts(std::vector<Narrow>& rows, const std::string& name,
                         const parallel::PartWeights& parts) {
  auto plan = narrow_plan(Learns::gpt2, 2);
  plan.stage_tensor = parts;
  const auto shape = shape_of(plan);
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const std::size_t unit = parallel::place_of(shape, rank).stage == 0 ? 1 : 2;
    for (const auto& [when, moment] : {std::pair("Before", Moment::before),
                                       {"Behind", Moment::behind},
                                       {"InBackward", Moment::in_backward}}) {
      rows.push_back(
          {"Rank" + std::to_string(rank) + "Of" + name + when, plan, rank, unit, moment});
    }
  }
}

std::vector<Narrow> narrow_rows() {
  std::vector<Narrow> all = {{"SecondStage", narrow_plan(Learns::tokens, 1), 1, 1},
                             {"FirstStage", narrow_plan(Learns::tokens, 2), 0, 1}};
  auto recomputing = narrow_plan(Learns::gpt2, 2);
  recomputing.recompute = "auto";
  recomputing.schedule = parallel::schedule::Kind::zero_bubble;
  all.push_back({"SecondStageThatMayRecompute", recomputing, 1, 2});
  for (int rank = 0; rank < 3; ++rank) {
    auto plan = narrow_plan(Learns::tokens, 1);
    plan.mesh = {.stages = 2, .replicas = 0, .uneven = {1, 2}};
    all.push_back({"Rank" + std::to_string(rank) + "OfUneven", plan, rank, rank == 0 ? 0u : 1u});
  }
  for (int rank = 0; rank < 4; ++rank) {
    const std::size_t unit = rank < 2 ? 1 : 2;  // a block of each stage
    for (const auto& [when, moment] : {std::pair("Before", Moment::before),
                                       {"Behind", Moment::behind},
                                       {"InBackward", Moment::in_backward}}) {
      all.push_back({"Rank" + std::to_string(rank) + "OfParts" + when,
                     narrow_plan(Learns::gpt2, 2, {2, 1}), rank, unit, moment});
    }
  }
  add_of_uneven_parts(all, "OneAndTwo", {{1}, {2, 1}});
  add_of_uneven_parts(all, "TwoAndOne", {{1, 2}, {1}});
  return all;
}

void make_narrow(task::Unit& unit, Moment moment) {
  unit.forward = [whole = unit.forward, moment](const task::Values& inputs) {
    const bool many = task::samples_of(inputs) > 6;
    if (many && moment == Moment::before) throw std::bad_alloc();
    auto outputs = whole(inputs);
    if (many && moment == Moment::behind) throw std::bad_alloc();
    if (many && outputs.front().requires_grad()) {
      outputs.front().register_hook(
          [](const torch::Tensor&) -> torch::Tensor { throw std::bad_alloc(); });
    }
    return outputs;
  };
}

class PipelineMemory : public ::testing::TestWithParam<Narrow> {};

TEST_P(PipelineMemory, ARankThatHasTooLittleMakesAllTakeSmallerMicroBatches) {
  const auto& [name, plan, narrow, unit, moment] = GetParam();
  const auto task = make_task(plan);
  std::vector<task::Model> models;
  const int ranks = shape_of(plan).ranks();
  for (int rank = 0; rank < ranks; ++rank) {
    models.push_back(make_start(*task, seed + 100 + static_cast<std::uint64_t>(rank)));
  }
  make_narrow(models[static_cast<std::size_t>(narrow)].units[unit], moment);
  std::vector<progress::Fit> tries = {progress::Fit::try_smaller_pieces};
  if (plan.recompute == "auto") tries.insert(tries.begin(), progress::Fit::try_recomputing);
  std::vector<std::vector<torch::Tensor>> tensors(models.size());
  testing::run_ranks(ranks, [&](int rank, comm::Group group) {
    const auto& model = models[static_cast<std::size_t>(rank)];
    auto worker = make_stage_worker(plan, *task, model, group);
    torch::optim::SGD optimizer(worker.parameters, torch::optim::SGDOptions(0.02).momentum(0.9));
    train::StepOptions options;
    options.seed = seed;
    options.stage = worker.compute;
    train::TrainingStep step(*worker.task, model, optimizer, worker.sync, options);
    auto sampler = data::make_sampler(*task->training(), seed);
    for (int number = 1; number <= plan.steps; ++number) {
      const auto samples = sampler.deal(plan.shares.front(), 24);
      const auto fetch = [&] { return task->training()->batch(samples.of_rank(0)); };
      for (const auto fit : number == 1 ? tries : std::vector<progress::Fit>()) {
        const auto result = step.run(number, samples, fetch, {});
        EXPECT_FALSE(result.applied);
        for (int other = 0; other < ranks; ++other) {
          EXPECT_EQ(result.figures[static_cast<std::size_t>(other)].fit,
                    other == narrow ? fit : progress::Fit::fits);
        }
      }
      EXPECT_TRUE(step.run(number, samples, fetch, {}).applied);
    }
    tensors[static_cast<std::size_t>(rank)] = worker.among(model);
  });
  EXPECT_LE(largest_difference(put_together(plan, tensors), train_plainly(plan).parameters), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Rows, PipelineMemory, ::testing::ValuesIn(narrow_rows()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace bimetal::golden
