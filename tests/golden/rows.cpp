#include "golden/rows.h"

#include <map>

namespace bimetal::golden {
namespace {

using parallel::shard::Kept;

train::UpdateOptions limited(double norm, double value = 0) {
  train::UpdateOptions update;
  update.limits = {.norm = norm, .value = value};
  return update;
}

train::UpdateOptions scaled() {
  auto update = limited(0.05);
  update.scaler.emplace();
  return update;
}

/// Without Adam: gradients that are 0 but for rounding (of the keys' biases) would be divided by
/// themselves. AdamW has an epsilon that is large beside these.
TrainingPlan language(Learns learns, double dropout) {
  return {.learns = learns, .dropout = dropout};
}

TrainingPlan with(TrainingPlan plan, void (*change)(TrainingPlan&)) {
  change(plan);
  return plan;
}

}  // namespace

void PrintTo(const Learnt& shown, std::ostream* out) {
  *out << shown.name;
}

void PrintTo(const Ranks& shown, std::ostream* out) {
  *out << shown.name;
}

const std::vector<Learnt>& learnt() {
  static const std::vector<Learnt> all = {
      {"CnnSgd", {}, false},
      {"CnnAdam", {.optimizer = Optimizer::adam}},
      {"CnnLars", {.optimizer = Optimizer::lars}, false},
      {"CnnLamb", {.optimizer = Optimizer::lamb}, false},
      {"CnnClippedByNorm", {.update = limited(0.5)}, false},
      {"CnnClippedByValue", {.update = limited(0, 0.01)}, false},
      {"CnnClippedByBoth", {.update = limited(0.2, 0.02)}},
      {"ResNet", {.learns = Learns::resnet, .steps = 10}},
      {"ResNetBatchNorm", {.learns = Learns::resnet_batch_norm, .steps = 10}},
      {"ResNetBatchNormRecomputed",
       {.learns = Learns::resnet_batch_norm, .steps = 10, .recompute = "all"},
       false},
      {"TokensTied", {.learns = Learns::tokens, .optimizer = Optimizer::adam}},
      {"Gpt2", language(Learns::gpt2, 0), false},
      {"Gpt2Dropout", language(Learns::gpt2, 0.1)},
      {"Gpt2DropoutRecomputed",
       with(language(Learns::gpt2, 0.1), [](TrainingPlan& plan) { plan.recompute = "all"; })},
      {"Gpt2RecomputedBySqrt",
       with(language(Learns::gpt2, 0), [](TrainingPlan& plan) { plan.recompute = "sqrt"; })},
      {"Llama", language(Learns::llama, 0)},
      {"LlamaDropoutClipped",
       with(language(Learns::llama, 0.1), [](TrainingPlan& plan) { plan.update = limited(0.05); })},
  };
  return all;
}

const std::vector<Learnt>& learnt_in_parts() {
  static const std::vector<Learnt> all = {
      {"Gpt2", {.learns = Learns::gpt2, .steps = 6}},
      {"Gpt2DropoutClippedAdamW",
       {.learns = Learns::gpt2,
        .dropout = 0.1,
        .optimizer = Optimizer::adamw,
        .steps = 6,
        .update = limited(0.05)}},
      {"Gpt2DropoutRecomputed",
       {.learns = Learns::gpt2, .dropout = 0.1, .steps = 6, .recompute = "all"}},
      {"Llama", {.learns = Learns::llama8, .steps = 6}},
      {"LlamaDropoutClipped",
       {.learns = Learns::llama8, .dropout = 0.1, .steps = 6, .update = limited(0.05)}},
      {"LlamaScaledRecomputed",
       {.learns = Learns::llama8, .steps = 6, .update = scaled(), .recompute = "sqrt"}},
  };
  return all;
}

const std::vector<Learnt>& learnt_offloaded() {
  static const std::vector<Learnt> all = {
      {"CnnOffloadedToHost", {.optimizer = Optimizer::adam, .offload = {"host"}}},
      {"CnnOffloadedToDisk", {.optimizer = Optimizer::adam, .offload = {"disk"}}},
      {"CnnOffloadedByRank", {.optimizer = Optimizer::adam, .offload = {"none", "disk", "host"}}},
      {"Gpt2OffloadedToDisk",
       {.learns = Learns::gpt2,
        .dropout = 0.1,
        .optimizer = Optimizer::adamw,
        .update = limited(0.05),
        .offload = {"disk"},
        .form = {.keep_below = 64}}},
      {"LlamaOffloadedToDiskScaled",
       {.learns = Learns::llama,
        .optimizer = Optimizer::adamw,
        .update = scaled(),
        .recompute = "sqrt",
        .offload = {"disk"},
        .kept = {Kept::OnDisk}}},
      {"LlamaOffloadedByRank",
       {.learns = Learns::llama,
        .optimizer = Optimizer::adamw,
        .update = scaled(),
        .offload = {"disk", "none"},
        .kept = {Kept::OnDisk, Kept::OnDevice, Kept::OnHost}}},
      {"TokensTiedKeptOnDisk",
       {.learns = Learns::tokens,
        .optimizer = Optimizer::adamw,
        .kept = {Kept::OnDisk},
        .form = {.keep_below = 64}}},
      {"CnnCopied", {.optimizer = Optimizer::adam, .copies = true}},
      {"ResNetBatchNormCopied", {.learns = Learns::resnet_batch_norm, .steps = 4, .copies = true}},
      {"Gpt2CopiedClipped",
       {.learns = Learns::gpt2,
        .dropout = 0.1,
        .optimizer = Optimizer::adamw,
        .update = limited(0.05),
        .copies = true,
        .form = {.keep_below = 64}}},
  };
  return all;
}

const std::vector<Learnt>& learnt_updated_in_backward() {
  static const auto all = [] {
    std::vector<Learnt> rows = {
        {"CnnAdamInBackward", {.optimizer = Optimizer::adam}},
        {"ResNetBatchNormInBackward", {.learns = Learns::resnet_batch_norm, .steps = 4}},
        {"TokensTiedInBackward",
         {.learns = Learns::tokens, .optimizer = Optimizer::adamw, .form = {.keep_below = 64}}},
        {"Gpt2DropoutMomentumInBackward", language(Learns::gpt2, 0.1)},
        {"Gpt2OffloadedToDiskInBackward",
         {.learns = Learns::gpt2,
          .dropout = 0.1,
          .optimizer = Optimizer::adamw,
          .recompute = "all",
          .offload = {"disk"},
          .kept = {Kept::OnDisk},
          .form = {.keep_below = 64}}},
        {"LlamaOffloadedByRankInBackward",
         {.learns = Learns::llama,
          .optimizer = Optimizer::adamw,
          .recompute = "sqrt",
          .offload = {"disk", "none", "host"},
          .kept = {Kept::OnHost, Kept::OnDisk, Kept::OnDevice}}},
    };
    for (auto& row : rows) row.plan.update_in_backward = true;
    return rows;
  }();
  return all;
}

// A share of 0 never sits still, so that each rank also comes back from one.
const std::vector<Ranks>& ranks() {
  static const std::vector<Ranks> all = {
      {"One", {{24}}},
      {"OneInMicroBatches", {{24}}, {1}, 5, false},
      {"Two", {{17, 7}}, {3, 1}},
      {"TwoOneAtRest", {{24, 0}, {5, 19}, {0, 24}}, {1, 3}},
      {"ThreeInMicroBatches", {{13, 11, 0}, {0, 23, 1}, {8, 8, 8}}, {5, 2, 0}, 4},
      {"FiveInMicroBatches", {{11, 6, 4, 3, 0}, {0, 1, 2, 9, 12}}, {1, 1, 0, 2, 1}, 4, false},
  };
  return all;
}

std::string shard_row_name(const ::testing::TestParamInfo<ShardRow>& info) {
  const auto level = std::get<2>(info.param);
  return row_name(info) + (level > 0 ? "Level" + std::to_string(level) : "");
}

std::vector<std::int64_t> cuts_of(const TrainingPlan& plan, Cuts cuts) {
  const auto units = static_cast<std::int64_t>(make_task(plan)->make_model().units.size());
  const std::int64_t pieces = plan.mesh.stages * plan.chunks;
  std::vector<std::int64_t> begins;
  for (std::int64_t piece = 1; piece < pieces; ++piece) {
    begins.push_back(cuts == Cuts::early ? piece : units - pieces + piece);
  }
  return begins;
}

const TrainingResult& alone(const Learnt& what) {
  static std::map<std::string, TrainingResult> known;
  const auto [place, fresh] = known.try_emplace(what.name);
  if (fresh) place->second = train_plainly(what.plan);
  return place->second;
}

void expect_same(const TrainingResult& result, const TrainingResult& expected) {
  EXPECT_LE(largest_difference(result.parameters, expected.parameters), 1e-12);
  ASSERT_EQ(result.losses.size(), expected.losses.size());
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(result.losses[i], expected.losses[i], 1e-12) << "step " << i + 1;
  }
}

}  // namespace bimetal::golden
