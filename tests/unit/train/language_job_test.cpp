// Jobs that learn text: from the job file to checkpoints and perplexity.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cmath>
#include <random>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/train/measure/dry_run.h"
#include "bimetal/train/measure/unit_measure.h"
#include "support/errors.h"
#include "unit/data/text/token_files.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kVocabulary = 20;

void write_tokens(const std::filesystem::path& path, std::uint32_t count, unsigned from) {
  data::test::TokenFileParts parts;
  parts.vocabulary = kVocabulary;
  std::mt19937 random(from);
  std::uint32_t token = from;
  for (std::uint32_t i = 0; i < count; ++i) {
    parts.tokens.push_back(token);
    token = static_cast<std::uint32_t>((5 * token + 1 + random() % 3) % kVocabulary);
  }
  parts.ends = {count};
  const auto bytes = data::test::token_bytes(parts);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

/// A small model on a small text, in float64: 40 blocks of 16 tokens and one of 9, 5 steps an
/// epoch.
class LanguageJobErrors : public test::CheckpointedJob {
 protected:
  LanguageJobErrors() {
    write_tokens(folder_ / "train.tokens", 40 * 16 + 10, 3);
    write_tokens(folder_ / "test.tokens", 100, 7);
    job_.model.name = "gpt2";
    job_.model.layers = 2;
    job_.model.width = 16;
    job_.model.heads = 2;
    job_.model.context = 16;
    job_.model.dropout = 0.1;
    job_.data.name = "tokens";
    job_.data.path = folder_.path().string();
    job_.train.epochs = 2;
    job_.train.global_batch = 9;
    job_.train.dtype = "float64";
    job_.train.learning_rate = 0.1;
    job_.parallel.balance = balance::Policy::Equal;
  }

  std::string refusal() const {
    return text_of(ErrorCode::InvalidArgument, [&] { test::task_of(job_); });
  }
};

class LanguageJob : public LanguageJobErrors, public ::testing::WithParamInterface<std::string> {};

TEST_P(LanguageJob, GoesOnWithAnotherNumberOfRanks) {
  job_.model.name = GetParam();
  const auto whole = train("whole", 1, 0);
  const auto part = train("part", 2, 3);
  const auto rest = train("rest", 3, 0, part);
  EXPECT_EQ(last_.reports[0].steps, 10);
  EXPECT_LE(test::relative_difference(test::parameters_of(whole), test::parameters_of(rest)),
            1e-12);
}

TEST_P(LanguageJob, TellsPerplexity) {
  job_.model.name = GetParam();
  job_.train.epochs = 12;
  train("run", 2, 0);
  const auto& report = last_.reports[0];
  const auto metrics = progress::last_metrics(report);
  const auto perplexity = progress::value_of(metrics, "perplexity");
  EXPECT_NEAR(perplexity, std::exp(last_.recorders[0].losses.back()), 1e-9 * perplexity);
  EXPECT_LT(perplexity, 0.8 * static_cast<double>(kVocabulary));
}

TEST_P(LanguageJob, ItsCheckpointIsAModel) {
  job_.model.name = GetParam();
  const auto saved = checkpoint::load_saved_model(train("run", 1, 2));
  const auto task = test::task_of(job_);
  EXPECT_EQ(saved.description, task->description());
  ASSERT_TRUE(saved.description.language);
  EXPECT_EQ(saved.description.language->vocabulary, static_cast<std::int64_t>(kVocabulary));
  const auto batch = task->evaluation()->batch(std::vector<std::int64_t>{0, 1});
  const auto logits = task::run_units(saved.model, task->inputs(batch)).front();
  EXPECT_EQ(logits.sizes().vec(), (std::vector<std::int64_t>{2, 16, 20})) << "without dropout";
}

/// A model made by units is that made whole, and nothing of it is left in memory.
void expect_the_same_by_units(const task::JobTask& task) {
  torch::manual_seed(3);
  const auto whole = task.make_model();
  torch::manual_seed(3);
  std::size_t made = 0;
  const auto hollow = task.make_model_by_units([&](const task::Unit& unit) {
    const auto& expected = whole.units.at(made++);
    ASSERT_EQ(unit.parameters.size(), expected.parameters.size());
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const auto& [name, tensor] = unit.parameters[i];
      EXPECT_EQ(name, expected.parameters[i].name);
      if (!tensor.unsafeGetTensorImpl()->storage_initialized()) continue;  // tied, and gone
      EXPECT_TRUE(tensor.equal(expected.parameters[i].tensor)) << name;
      parallel::shard::hollow_out(tensor);
    }
  });
  ASSERT_TRUE(hollow);
  EXPECT_EQ(made, whole.units.size());
  for (const auto& tensor : hollow->parameters()) {
    EXPECT_FALSE(tensor.unsafeGetTensorImpl()->storage_initialized());
  }
}

TEST_P(LanguageJob, IsMadeByUnits) {
  job_.model.name = GetParam();
  expect_the_same_by_units(*test::task_of(job_));
  const auto saved = checkpoint::load_saved_model(train("run", 1, 1));
  checkpoint::save_huggingface(saved.model, *saved.description.language, folder_ / "weights");
  auto job = job_;
  job.model = {};
  job.model.name = GetParam();
  job.model.weights = (folder_ / "weights").string();
  expect_the_same_by_units(*test::task_of(job));
}

TEST_P(LanguageJob, ItsUnitsAreMeasuredOneInMemoryAtATime) {
  job_.model.name = GetParam();
  const auto task = test::task_of(job_);
  auto memory = UnitMemory::make(*task, torch::kCPU, torch::kFloat64);
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->held_bytes(), 0);
  memory->hold(1);
  std::int64_t block = 0;
  for (const auto& [name, tensor] : memory->model().units[1].parameters) {
    block += static_cast<std::int64_t>(tensor.nbytes());
  }
  EXPECT_EQ(memory->held_bytes(), block);
  memory->drop(1);
  EXPECT_EQ(memory->held_bytes(), 0);

  UnitMeasureOptions options{.on = {.dtype = torch::kFloat64}, .timed = Timed::nothing};
  const auto whole = measure_units(job_.train, *task, options);
  options.by_units = true;
  const auto parts = measure_units(job_.train, *task, options);
  ASSERT_TRUE(whole && parts);
  EXPECT_TRUE(parts->by_units && !whole->by_units);
  for (std::size_t u = 0; u < whole->units.size(); ++u) {
    const auto &one = parts->units[u], &other = whole->units[u];
    EXPECT_NEAR(one.saved.at(4) / other.saved.at(4), 1, 0.02) << one.name;
    EXPECT_NEAR(one.forward_peak.at(4) / other.forward_peak.at(4), 1, 0.02) << one.name;
    EXPECT_NEAR(one.backward_peak.at(4) / other.backward_peak.at(4), 1, 0.1) << one.name;
  }
}

TEST_P(LanguageJob, ItsUnitsAreMeasuredInPartsToo) {
  job_.model.name = GetParam();
  const auto task = test::task_of(job_);
  const auto facts =
      measure_units(job_.train, *task,
                    {.on = {.dtype = torch::kFloat64}, .timed = Timed::nothing, .parts = true});
  ASSERT_TRUE(facts);
  EXPECT_EQ(plan::most_tensor_ranks(*facts), 2) << "heads";
  const auto& block = facts->units[1];
  std::int64_t cut = 0;
  for (const auto& split : block.in_parts.splits) cut += split.own;
  EXPECT_GT(cut, block.parameters / 2);
  EXPECT_LT(cut, block.parameters) << "normalisations stay whole";
  // Two sums of what goes to the next unit, in each direction (Megatron's f and g).
  EXPECT_EQ(block.in_parts.forward_sums, 2);
  EXPECT_EQ(block.in_parts.backward_sums, 2);
  EXPECT_DOUBLE_EQ(block.in_parts.forward_summed_bytes.at(4), 2 * block.output.at(4));
  EXPECT_DOUBLE_EQ(block.in_parts.backward_summed_bytes.at(4), 2 * block.output.at(4));
  // Inputs stay whole, what is between the matrices does not.
  EXPECT_GT(block.in_parts.saved, 0.02);
  EXPECT_LT(block.in_parts.saved, 0.7);
  const auto& head = facts->units.back();
  EXPECT_EQ(head.in_parts.forward_sums, 2) << "of the loss";
  EXPECT_EQ(head.in_parts.backward_sums, 1);
  EXPECT_LT(head.in_parts.saved, 0.8);

  const auto whole =
      measure_units(job_.train, *task, {.on = {.dtype = torch::kFloat64}, .timed = Timed::nothing});
  EXPECT_EQ(plan::most_tensor_ranks(*whole), 1) << "nobody has asked";
}

// The head's gradient, and the embedding's, which is added to it: not their sum as a third.
TEST_F(LanguageJobErrors, TheGradientOfATiedTensorIsThereTwiceAtMost) {
  job_.model.vocabulary = 20'000;
  const double table = 20'000.0 * 16 * sizeof(double);
  const auto task = test::task_of(job_);
  for (const bool by_units : {false, true}) {
    const auto facts = measure_units(
        job_.train, *task,
        {.on = {.dtype = torch::kFloat64}, .timed = Timed::nothing, .by_units = by_units});
    ASSERT_TRUE(facts);
    EXPECT_EQ(facts->units.front().shared, 20'000 * 16);
    EXPECT_GE(facts->units.front().backward_peak.fixed, 1.9 * table);
    EXPECT_LE(facts->units.front().backward_peak.fixed, 2.2 * table);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LanguageJob, ::testing::Values("gpt2", "llama"),
                         [](const auto& param) { return param.param; });

TEST_F(LanguageJobErrors, AModelAndDataThatDoNotFitSayWhatWould) {
  EXPECT_EQ(refusal(), "");
  job_.model.name = "cnn";
  EXPECT_THAT(refusal(), HasSubstr("model.name = \"cnn\" cannot learn data.name = \"tokens\""));
  job_.model.name = "gpt2";
  job_.model.vocabulary = 19;
  EXPECT_THAT(refusal(), HasSubstr("the model knows 19: leave model.vocabulary out"));
  job_.model.vocabulary = 64;
  EXPECT_EQ(refusal(), "") << "more than the text's are fine";
  job_.data.block = 17;
  EXPECT_THAT(refusal(), HasSubstr("data.block = 17 is more than the 16 tokens"));
  job_.data.block = 0;
  job_.model.heads = 3;
  EXPECT_THAT(refusal(), HasSubstr("model.heads = 3"));
  job_.model.heads = 2;
  job_.data.bootstrap_seed = 1;
  EXPECT_THAT(refusal(), HasSubstr("data.bootstrap_seed"));
}

TEST_F(LanguageJobErrors, PartsThatCannotBeSayWhatWould) {
  const auto expect_refused = [&](int ranks, const std::string& part) {
    expect_error(ErrorCode::InvalidArgument, {part}, [&] { test::run_job(job_, ranks); });
  };
  job_.mesh.tensor = 3;
  expect_refused(3, "take mesh.tensor = 2 or less");
  expect_refused(2, "3 would do");
  job_.mesh.tensor = 2;
  job_.mesh.tensor_weights = {1, 2, 3};
  expect_refused(2, "mesh.tensor_weights has 3 weights for mesh.tensor = 2");
}

TEST_F(LanguageJobErrors, ALanguageModelLearnsNoImages) {
  const test::SyntheticImages images(20, 10);
  auto job = test::small_job(images);
  job.model.name = "llama";
  expect_error(ErrorCode::InvalidArgument, {"take data.name = \"tokens\""},
               [&] { test::task_of(job); });
}

}  // namespace
}  // namespace bimetal::train
