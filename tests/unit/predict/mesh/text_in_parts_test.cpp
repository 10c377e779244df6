// With any cuts, the ranks of a mesh write what one device does, and none has more than its part.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/device/device.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/predict/mesh/model_in_parts.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"

namespace bimetal::predict {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Written {
  std::string name;
  std::string family;
  bool tied;
  std::string dtype;
  int stages;
  std::vector<std::int64_t> cuts;
  parallel::PartWeights parts = {};
};

void PrintTo(const Written& shown, std::ostream* out) {
  *out << shown.name;
}

models::LanguageModelConfig config_of(const std::string& family, bool tied) {
  auto config =
      models::resized(models::language_preset(family), {.layers = 3,
                                                        .width = 24,
                                                        .heads = 4,
                                                        .kv_heads = family == "gpt2" ? 4 : 2,
                                                        .hidden = 36,
                                                        .context = 8,
                                                        .vocabulary = 21});
  config.tied = tied;
  return config;
}

/// With weights so large that texts are no matter of chance alone.
task::Model widely_drawn(const checkpoint::ModelDescription& description) {
  torch::manual_seed(5);
  auto model = checkpoint::make_described_model(description);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) {
    if (parameter.dim() > 1) parameter.normal_(0, 0.4);
  }
  return model;
}

std::filesystem::path saved_in(const std::filesystem::path& folder, const task::Model& model,
                               const checkpoint::ModelDescription& description) {
  const torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
  return checkpoint::save_checkpoint(folder, model, optimizer, {.step = 1, .model = description},
                                     1);
}

/// Beyond the context of 8.
constexpr std::int64_t kLookedAt = 8, kKnownTokens = 21;
const Sampling kSampling{.tokens = 20, .temperature = 0.9, .top_k = 15, .seed = 11};
const std::vector<std::int64_t> kPrompt = {3, 1, 4};

std::vector<std::int64_t> by_one(const task::Model& model) {
  return generate(foretold_by(model, torch::kCPU), kLookedAt, kPrompt, kSampling);
}

parallel::MeshShape shape_of(const Written& how) {
  parallel::MeshShape shape{.stages = how.stages};
  for (const auto& weights : how.parts) shape.parts.push_back(static_cast<int>(weights.size()));
  return parallel::fit_mesh(shape, shape.ranks());
}

std::int64_t elements_in(const task::Model& model) {
  std::int64_t all = 0;
  for (const auto& parameter : model.parameters()) all += parameter.numel();
  return all;
}

/// On every rank the same as `expected`.
void expect_written(const Written& how, const std::filesystem::path& run, const task::Model& whole,
                    const std::vector<std::int64_t>& expected) {
  const auto shape = shape_of(how);
  testing::run_ranks(shape.ranks(), [&](int rank, comm::Group group) {
    const parallel::Mesh mesh(group, shape);
    auto model =
        load_in_parts(mesh, run, {.cuts = how.cuts, .tensor_weights = how.parts, .timeout = 60s});
    EXPECT_LT(elements_in(model.part.stage.model), elements_in(whole)) << "rank " << rank;
    EXPECT_THAT(model.picture, HasSubstr("stage 0"));
    const auto by = foretold_in_parts(mesh, std::move(model.part),
                                      {.vocabulary = kKnownTokens, .timeout = 60s});
    EXPECT_EQ(generate(by, kLookedAt, kPrompt, kSampling), expected) << "rank " << rank;
  });
}

class TextInParts : public ::testing::TestWithParam<Written> {};

TEST_P(TextInParts, IsThatOfOneDevice) {
  const auto& how = GetParam();
  const auto config = config_of(how.family, how.tied);
  const checkpoint::ModelDescription description{
      .name = how.family, .dtype = how.dtype, .language = config};
  const auto whole = widely_drawn(description);
  const test::TemporaryFolder folder;
  saved_in(folder.path(), whole, description);
  expect_written(how, folder.path(), whole, by_one(whole));
}

INSTANTIATE_TEST_SUITE_P(
    Cuts, TextInParts,
    ::testing::Values(
        Written{"Gpt2EmbeddingAlone", "gpt2", true, "float64", 2, {1}},
        Written{"Gpt2HeadAlone", "gpt2", true, "float32", 2, {4}},
        Written{"Gpt2Three", "gpt2", true, "float64", 3, {1, 2}},
        Written{"Gpt2ThreeLate", "gpt2", true, "float32", 3, {3, 4}},
        Written{"Gpt2ByMemory", "gpt2", true, "float32", 2, {}},
        Written{"Gpt2Untied", "gpt2", false, "float64", 2, {3}},
        Written{"Gpt2EveryUnit", "gpt2", true, "float32", 5, {1, 2, 3, 4}},
        Written{"LlamaTwo", "llama", false, "float64", 2, {2}},
        Written{"LlamaTied", "llama", true, "float32", 3, {1, 4}},
        Written{"LlamaByMemory", "llama", false, "float64", 3, {}},
        Written{"Gpt2InParts", "gpt2", true, "float64", 1, {}, {{2, 1}}},
        Written{"Gpt2StagesInParts", "gpt2", true, "float64", 2, {1}, {{1, 1}, {1, 1}}},
        Written{"LlamaStagesInParts", "llama", false, "float64", 2, {3}, {{1, 1}, {1, 1}}},
        Written{"Gpt2SomeInParts", "gpt2", true, "float64", 3, {1, 3}, {{1, 1}, {1}, {2, 1}}},
        Written{"LlamaSomeInParts", "llama", true, "float64", 2, {}, {{1}, {1, 1}}}),
    [](const auto& row) { return row.param.name; });

TEST(TextInPartsOfHuggingFace, IsThatOfOneDevice) {
  for (const std::string family : {"gpt2", "llama"}) {
    const auto config = config_of(family, family == "gpt2");
    const auto whole = widely_drawn({.name = family, .language = config});
    const test::TemporaryFolder folder;
    checkpoint::save_huggingface(whole, config, folder.path() / "theirs");
    for (const Written& how : {Written{"stages", family, true, "float32", 2, {2}},
                               Written{"parts", family, true, "float32", 2, {1}, {{1}, {1, 1}}}}) {
      expect_written(how, folder.path() / "theirs", whole, by_one(whole));
    }
  }
}

/// The error of the rank that fails by itself; the others' follow from it.
Error refusal(int stages, const std::filesystem::path& run, PartOptions options = {}) {
  std::mutex lock;
  std::optional<Error> own;
  try {
    testing::run_ranks(stages, [&](int /*rank*/, comm::Group group) {
      const parallel::Mesh mesh(group, {.stages = stages});
      auto model = load_in_parts(mesh, run, options);
      const auto by = foretold_in_parts(mesh, std::move(model.part), {.vocabulary = kKnownTokens});
      try {
        generate(by, kLookedAt, kPrompt, kSampling);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::Aborted) {
          const std::lock_guard held(lock);
          if (!own) own = error;
        }
        group.abort(error.what());
        throw;
      }
    });
  } catch (const Error& error) {
    return own.value_or(error);
  }
  return {ErrorCode::Internal, "nothing was refused"};
}

TEST(TextInPartsRefusals, SayWhy) {
  const auto config = config_of("gpt2", true);
  const checkpoint::ModelDescription description{.name = "gpt2", .language = config};
  const auto model = widely_drawn(description);
  const test::TemporaryFolder folder;
  saved_in(folder.path(), model, description);
  const auto many = refusal(6, folder.path());
  EXPECT_EQ(many.code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(many.what(), HasSubstr("a model of 5 units cannot be cut into 6 pieces"));
  EXPECT_THAT(refusal(2, folder.path(), {.cuts = {5}}).what(), HasSubstr("mesh.cuts = [5]"));
  {
    const torch::NoGradGuard no_grad;
    torch::Tensor(model.parameters().back()).fill_(NAN);
  }
  saved_in(folder.path(), model, description);
  EXPECT_EQ(refusal(2, folder.path(), {.cuts = {2}}).code(), ErrorCode::NotFinite);

  const checkpoint::ModelDescription images{.name = "linear"};
  const test::TemporaryFolder other;
  saved_in(other.path(), checkpoint::make_described_model(images), images);
  EXPECT_THAT(refusal(2, other.path()).what(), HasSubstr("which is no language model"));
}

}  // namespace
}  // namespace bimetal::predict
