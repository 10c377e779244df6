#include "bimetal/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/checkpoint/checkpoint_manifest.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/optim/layer_wise.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "unit/checkpoint/small_net.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::contents_of;
using test::names_in;
using test::put_contents;
using ::testing::HasSubstr;
using Names = std::set<std::string>;

TrainingState state_at(std::int64_t step) {
  return {.step = step,
          .position = {.epoch = 2, .offset = 1536},
          .seed = 18446744073709551615u,
          .global_batch = 512,
          .shares = {410, 0, 102},
          .torch_rng = {0, 1, 2, 254, 255},
          .error_feedback = {{"bucket 0.residual", {1.5f, -2, 0}}, {"bucket 1.basis", {3}}}};
}

/// Collects log messages while it lives.
class Messages {
 public:
  Messages() {
    set_log_sink([this](LogLevel level, std::string_view text) {
      text_ += (level >= LogLevel::warning ? "warning: " : "info: ") + std::string(text) + "\n";
    });
  }
  ~Messages() { set_log_sink({}); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Checkpoint : public ::testing::Test {
 protected:
  fs::path save(std::int64_t step, std::int64_t keep = 100) {
    return save_checkpoint(folder_.path(), net_, sgd_, state_at(step), keep);
  }
  std::int64_t loaded_step(const fs::path& path) { return load_checkpoint(path, net_, sgd_).step; }

  /// The error of loading; the model stays as it is.
  Error refusal(const fs::path& path, SmallNet& net, torch::optim::Optimizer& optimizer) {
    const auto before = copy_of(net);
    try {
      load_checkpoint(path, net, optimizer);
    } catch (const Error& error) {
      expect_equal(copy_of(net), before);
      return error;
    }
    ADD_FAILURE() << "accepted " << path;
    return Error(ErrorCode::Internal, "");
  }

  const test::TemporaryFolder folder_;
  SmallNet net_;
  torch::optim::SGD sgd_{net_.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
};

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(SmallNet&)>;

/// Six steps in one go, and three, a checkpoint, and three in another object: the same bits.
void expect_seamless(const MakeOptimizer& make) {
  const test::TemporaryFolder folder;
  SmallNet first;
  const auto first_optimizer = make(first);
  run_steps(first, *first_optimizer, 1, 3);
  save_checkpoint(folder.path(), first, *first_optimizer, state_at(3), 1);
  run_steps(first, *first_optimizer, 4, 6);

  SmallNet second;
  const auto second_optimizer = make(second);
  EXPECT_EQ(load_checkpoint(folder.path(), second, *second_optimizer), state_at(3));
  run_steps(second, *second_optimizer, 4, 6);
  expect_equal(copy_of(second), copy_of(first));
}

TEST_F(Checkpoint, ContinuesAsIfNothingHadHappened) {
  expect_seamless([](SmallNet& net) {
    return std::make_unique<torch::optim::SGD>(net.parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  expect_seamless([](SmallNet& net) {
    return std::make_unique<torch::optim::SGD>(net.parameters(), torch::optim::SGDOptions(0.1));
  });
  expect_seamless([](SmallNet& net) {
    return std::make_unique<torch::optim::Adam>(net.parameters(), torch::optim::AdamOptions(0.01));
  });
  expect_seamless([](SmallNet& net) {
    return std::make_unique<torch::optim::AdamW>(net.parameters(),
                                                 torch::optim::AdamWOptions(0.01).amsgrad(true));
  });
  expect_seamless([](SmallNet& net) {
    return std::make_unique<optim::Lars>(net.parameters(),
                                         optim::LarsOptions(1).trust_coefficient(0.1));
  });
  expect_seamless([](SmallNet& net) {
    return std::make_unique<optim::Lamb>(net.parameters(),
                                         optim::LambOptions(0.1).weight_decay(0.01));
  });
}

TEST_F(Checkpoint, KeepsTheStateOfParametersInSeveralGroups) {
  expect_seamless([](SmallNet& net) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(net.head->parameters());
    groups.emplace_back(net.conv->parameters(),
                        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.01)));
    return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
}

TEST_F(Checkpoint, HasTheDocumentedLayout) {
  run_steps(net_, sgd_, 1, 1);
  EXPECT_EQ(save(1234), folder_ / "step-00001234");
  EXPECT_EQ(names_in(folder_.path()), Names{"step-00001234"});
  EXPECT_EQ(names_in(folder_ / "step-00001234"),
            (Names{"error_feedback.safetensors", "model.safetensors", "optimizer.safetensors",
                   "state.json"}));
  EXPECT_TRUE(read_safetensors(folder_ / "step-00001234/model.safetensors").contains("head.bias"));
  EXPECT_TRUE(read_safetensors(folder_ / "step-00001234/optimizer.safetensors")
                  .contains("head.bias.momentum_buffer"));
}

TEST_F(Checkpoint, KeepsTheOnesSavedLast) {
  for (const int step : {10, 20, 30, 40}) save(step, 2);
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-00000030", "step-00000040"}));
  EXPECT_EQ(loaded_step(folder_.path()), 40);
  EXPECT_EQ(loaded_step(folder_ / "step-00000030"), 30);
}

// A job started anew in an old folder must not resume from the old job, nor lose its own to it.
TEST_F(Checkpoint, NewestMeansSavedLastNotMostSteps) {
  for (const int step : {500, 1000, 10}) save(step, 2);
  EXPECT_EQ(loaded_step(folder_.path()), 10);
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-00000010", "step-00001000"}));
}

TEST_F(Checkpoint, ReplacesOneOfTheSameStep) {
  save(10);
  run_steps(net_, sgd_, 1, 1);
  const auto trained = copy_of(net_);
  save(10);
  EXPECT_EQ(names_in(folder_.path()), Names{"step-00000010"});
  run_steps(net_, sgd_, 2, 2);
  load_checkpoint(folder_.path(), net_, sgd_);
  expect_equal(copy_of(net_), trained);
}

TEST_F(Checkpoint, LeavesWhatIsNotItsOwnAlone) {
  fs::create_directory(folder_ / "step-00000001");
  put_contents(folder_ / "step-00000001/thesis.txt", "ten years of work");
  put_contents(folder_ / "step-00000002", "a file");
  for (const int step : {3, 4}) save(step, 1);
  EXPECT_EQ(names_in(folder_.path()), (Names{"step-00000001", "step-00000002", "step-00000004"}));
}

TEST_F(Checkpoint, MakesItsFolder) {
  const auto deep = folder_ / "runs/first";
  EXPECT_EQ(save_checkpoint(deep, net_, sgd_, state_at(1), 1), deep / "step-00000001");
}

TEST_F(Checkpoint, RefusesNumbersThatNoTrainingComesTo) {
  const std::vector<std::pair<std::string, std::function<void(TrainingState&)>>> cases = {
      {"step is 4611686018427387904", [](auto& state) { state.step = std::int64_t{1} << 62; }},
      {"step is -1", [](auto& state) { state.step = -1; }},
      {"offset is -1", [](auto& state) { state.position.offset = -1; }},
      {"a share is -1", [](auto& state) { state.shares[1] = -1; }},
      {"global_batch is 0", [](auto& state) { state.global_batch = 0; }},
      {"the loss scale is 0", [](auto& state) { state.loss_scaler.emplace().scale = 0; }}};
  for (const auto& [words, forge] : cases) {
    auto state = state_at(3);
    forge(state);
    expect_error(ErrorCode::CorruptData, {words},
                 [&] { parse_state_text(state_text(state), "state.json"); });
  }
}

TEST_F(Checkpoint, RefusesBracketsOfAnyDepth) {
  const auto path = save(1);
  const std::string deep(3'000'000, '[');
  put_contents(path / "state.json", deep + std::string(deep.size(), ']'));
  EXPECT_EQ(refusal(path, net_, sgd_).code(), ErrorCode::CorruptData);
  put_contents(folder_ / "config.json",
               "{\"model_type\": " + deep + std::string(deep.size(), ']') + "}");
  EXPECT_THROW(read_huggingface_config(folder_.path()), Error);
}

TEST_F(Checkpoint, NoticesEveryDamage) {
  run_steps(net_, sgd_, 1, 1);
  const auto path = save(1);
  for (const char* name :
       {"model.safetensors", "optimizer.safetensors", "error_feedback.safetensors", "state.json"}) {
    const auto file = path / name;
    const std::string whole = contents_of(file);
    // Nothing is lost with the line feed at the end.
    for (std::size_t position = 0; position + 1 < whole.size(); position += whole.size() / 40) {
      std::string flipped = whole;
      flipped[position] ^= 1;
      for (const auto& damaged : {flipped, whole.substr(0, position)}) {
        put_contents(file, damaged);
        const Error error = refusal(folder_.path(), net_, sgd_);
        EXPECT_EQ(error.code(), ErrorCode::CorruptData) << name << " at " << position;
        EXPECT_THAT(error.what(), HasSubstr(name));
      }
    }
    fs::remove(file);
    EXPECT_EQ(refusal(folder_.path(), net_, sgd_).code(), ErrorCode::CorruptData);
    put_contents(file, whole);
  }
  EXPECT_EQ(loaded_step(path), 1);
}

TEST_F(Checkpoint, SkipsDamagedOnesWithAWarning) {
  for (const int step : {1, 2, 3}) save(step);
  put_contents(folder_ / "step-00000003/model.safetensors", "");
  fs::remove(folder_ / "step-00000002/state.json");
  const Messages messages;
  EXPECT_EQ(loaded_step(folder_.path()), 1);
  EXPECT_THAT(messages.text(), HasSubstr("warning: skipping the checkpoint " +
                                         (folder_ / "step-00000003").string()));
}

TEST_F(Checkpoint, SaysWhenThereIsNone) {
  for (const auto& path : {folder_.path(), folder_ / "missing"}) {
    const Error error = refusal(path, net_, sgd_);
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(),
                ::testing::StartsWith("there is no checkpoint in " + path.string() + ": "));
  }
}

TEST_F(Checkpoint, RefusesAnotherModel) {
  const auto path = save(1);
  SmallNet larger(5);
  torch::optim::SGD sgd(larger.parameters(), torch::optim::SGDOptions(0.1));
  const Error error = refusal(path, larger, sgd);
  EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("'conv.bias' is [4] Float there and [5] Float here"));
}

TEST_F(Checkpoint, RefusesAnotherOptimizer) {
  const auto path = save(1);
  torch::optim::Adam adam(net_.parameters());
  const Error error = refusal(path, net_, adam);
  EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
  EXPECT_EQ(error.what(),
            path.string() + " was saved with the optimizer 'sgd', this job uses 'adam'");
}

// The tensors of one would fit the other.
TEST_F(Checkpoint, TellsLarsFromSgdAndLambFromAdam) {
  optim::Lars lars(net_.parameters(), optim::LarsOptions(1));
  EXPECT_THAT(refusal(save(1), net_, lars).what(), HasSubstr("'sgd', this job uses 'lars'"));
  optim::Lamb lamb(net_.parameters(), optim::LambOptions(1));
  run_steps(net_, lamb, 1, 1);
  const auto path = save_checkpoint(folder_.path(), net_, lamb, state_at(2), 1);
  torch::optim::Adam adam(net_.parameters());
  EXPECT_THAT(refusal(path, net_, adam).what(), HasSubstr("'lamb', this job uses 'adam'"));
}

TEST_F(Checkpoint, RefusesAnOptimizerOfOtherNeeds) {
  torch::optim::Adam plain(net_.parameters());
  run_steps(net_, plain, 1, 1);
  save_checkpoint(folder_.path(), net_, plain, state_at(1), 1);
  torch::optim::Adam with_max(net_.parameters(), torch::optim::AdamOptions().amsgrad(true));
  EXPECT_THAT(refusal(folder_.path(), net_, with_max).what(),
              HasSubstr("max_exp_avg_sq is missing"));
  torch::optim::Adam of_a_part(net_.head->parameters());
  EXPECT_THAT(refusal(folder_.path(), net_, of_a_part).what(),
              HasSubstr("it has no parameter for 'conv.bias."));
}

TEST_F(Checkpoint, TheJobsHyperParametersWin) {
  save(1);
  torch::optim::SGD slower(net_.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  const Messages messages;
  load_checkpoint(folder_.path(), net_, slower);
  EXPECT_EQ(slower.param_groups()[0].options().get_lr(), 0.01);
  EXPECT_THAT(messages.text(), HasSubstr("\"learning_rate\":0.1"));
  EXPECT_THAT(messages.text(), HasSubstr("\"learning_rate\":0.01"));
}

TEST_F(Checkpoint, RefusesAFormatOfTheFuture) {
  const auto file = save(1) / "state.json";
  std::string text = contents_of(file);
  const std::string version = "\"format_version\": 1";
  text.replace(text.find(version), version.size(), "\"format_version\": 3");
  put_contents(file, text);
  EXPECT_EQ(refusal(folder_.path(), net_, sgd_).code(), ErrorCode::Unsupported);
}

TEST_F(Checkpoint, RefusesToSaveWhatItCouldNotLoad) {
  const auto refusal_of = [&](const torch::optim::Optimizer& optimizer, std::int64_t keep) {
    return code_of([&] { save_checkpoint(folder_.path(), net_, optimizer, state_at(1), keep); });
  };
  torch::optim::RMSprop other(net_.parameters());
  EXPECT_EQ(refusal_of(other, 1), ErrorCode::Unsupported);
  SmallNet stranger;
  torch::optim::SGD of_stranger(stranger.parameters(), torch::optim::SGDOptions(0.1));
  EXPECT_EQ(refusal_of(of_stranger, 1), ErrorCode::InvalidArgument);
  EXPECT_EQ(refusal_of(sgd_, 0), ErrorCode::InvalidArgument);
  EXPECT_TRUE(names_in(folder_.path()).empty());
}

}  // namespace
}  // namespace bimetal::checkpoint
