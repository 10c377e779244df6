// Checkpoints of ranks that keep shards or stages: any job goes on from any other's, whatever
// levels, ranks, shards and meshes the two have, as one rank would have.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <numeric>
#include <regex>
#include <set>
#include <string>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "unit/train/training_job.h"

namespace bimetal::train {
namespace {

/// The workers that train.
struct Workers {
  std::int64_t level;
  std::vector<double> shards;             ///< one for each, or for each replica of a stage
  std::vector<std::int64_t> cuts = {};    ///< where stages begin
  std::vector<std::int64_t> uneven = {};  ///< replicas by stage; their shards are equal
  std::string states = "none";            ///< where they are kept
  std::string parameters = "none";        ///< likewise, of a rank's shard

  std::size_t ranks() const {
    return uneven.empty() ? shards.size() * (cuts.size() + 1)
                          : static_cast<std::size_t>(std::reduce(uneven.begin(), uneven.end()));
  }
};

class SlicedResume : public test::CheckpointedJob {
 protected:
  SlicedResume() : images_(64, 10) {
    job_ = test::small_job(images_);
    job_.model.name = "mlp";
    job_.model.hidden = 9;
    job_.parallel.balance = balance::Policy::Equal;
    job_.train.evaluate = false;
    job_.train.optimizer = "adamw";
    job_.train.learning_rate = 1e-3;
    job_.train.weight_decay = 0.1;
    job_.train.decay_on = "matrices";
    job_.zero.offload_path = std::filesystem::temp_directory_path().string();
  }

  std::filesystem::path train_as(const Workers& who, const std::string& name, std::int64_t steps,
                                 std::optional<std::filesystem::path> resume = {}) {
    job_.zero.level = who.level;
    job_.zero.shards = who.uneven.empty() ? "" : "equal";
    job_.zero.weights = who.uneven.empty() ? who.shards : std::vector<double>();
    job_.zero.offload_optimizer = who.states;
    job_.zero.offload_parameters = who.parameters;
    job_.mesh.stage_replicas = who.uneven;
    job_.mesh.cuts = who.cuts;
    job_.mesh.stages = static_cast<std::int64_t>(who.cuts.size()) + 1;
    return train(name, static_cast<int>(who.ranks()), steps, std::move(resume));
  }

  /// All of its tensors, whole.
  checkpoint::TensorMap all_of(const std::filesystem::path& saved) {
    const auto whole = folder_ / ("whole" + std::to_string(++consolidated_));
    checkpoint::consolidate_checkpoint(saved, whole);
    auto all = checkpoint::read_safetensors(whole / "model.safetensors");
    all.merge(checkpoint::read_safetensors(whole / "optimizer.safetensors"));
    return all;
  }

  static void expect_same(const checkpoint::TensorMap& ours, const checkpoint::TensorMap& expected,
                          const std::string& what) {
    ASSERT_EQ(ours.size(), expected.size()) << what;
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(ours.contains(name)) << what << ": " << name;
      EXPECT_TRUE(tensor.allclose(ours.at(name), 0, 1e-12)) << what << ": " << name;
    }
  }

  test::SyntheticImages images_;
  int consolidated_ = 0;
};

// By its spec each worker keeps what is its own where it likes, and shards are as each has room.
TEST_F(SlicedResume, WorkersNeedNotOffloadAlike) {
  const auto expected = all_of(train_as({0, {1}}, "expected", 3));
  for (const std::int64_t level : {1, 2, 3}) {
    job_.zero.level = level;
    job_.zero.shards = "memory";
    job_.zero.weights.clear();
    const std::string all = level == 3 ? ",offload_parameters=disk" : "";
    const std::vector<std::string> workers = {"cpu:threads=1,offload_optimizer=disk" + all,
                                              "cpu:threads=1",
                                              "cpu:threads=1,offload_optimizer=host"};
    const auto name = "level " + std::to_string(level);
    const auto part = train(name, 3, 2, {}, workers);
    expect_same(all_of(train(name + " on", 2, 3, part, {workers[1], workers[0]})), expected, name);
  }
}

// Levels 2 and 3 measure no steps before training. A hundredth of the speed: far more than noise.
TEST_F(SlicedResume, ShardsFollowSpeedWhereNoStepsAreMeasured) {
  job_.model.hidden = 400;
  job_.zero.shards = "speed";
  for (const std::int64_t level : {2, 3}) {
    job_.zero.level = level;
    const auto name = "level " + std::to_string(level);
    train(name, 2, 1, {}, {"cpu:threads=1", "cpu:threads=1,speed=0.01"});
    const std::regex shards(R"(of ([0-9.]+) : ([0-9.]+) MiB of parameters)");
    const auto& notices = last_.recorders[0].notices;
    std::smatch found;
    ASSERT_TRUE(std::ranges::any_of(notices, [&](const std::string& notice) {
      return std::regex_search(notice, found, shards);
    })) << name;
    EXPECT_GT(std::stod(found[1]), std::stod(found[2])) << name;
  }
}

/// The file names of a checkpoint in which `name` has slices.
std::set<std::string> files_with(const std::filesystem::path& saved, const std::string& name) {
  std::set<std::string> files;
  const auto opened = checkpoint::find_checkpoint(saved);
  for (const auto& slice : opened.index().model.at(name).slices) {
    files.insert(slice.file);
  }
  return files;
}

TEST_F(SlicedResume, EachStageIsWrittenByItsRanks) {
  const auto whole = train_as({0, {1, 1}, {1}}, "replicas", 1);
  EXPECT_EQ(files_with(whole, "fc1.weight"),
            std::set<std::string>{"model-00000-of-00004.safetensors"});
  EXPECT_EQ(files_with(whole, "fc3.weight"),
            std::set<std::string>{"model-00002-of-00004.safetensors"});
  EXPECT_FALSE(std::filesystem::exists(whole / "model-00001-of-00004.safetensors"));
  const auto cut = train_as({1, {1, 1}, {1}}, "shards", 1);
  EXPECT_FALSE(files_with(cut, "fc3.weight").contains("model-00000-of-00004.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(cut / "optimizer-00003-of-00004.safetensors"));
}

TEST_F(SlicedResume, AnotherModelAndAnotherOptimizerAreRefused) {
  const Workers two{2, {2, 1}}, stages{0, {1}, {2}};
  const auto saved = train_as(two, "first", 1);
  const auto refused = [&](const char* part) {
    for (const auto& who : {two, stages}) {
      try {
        train_as(who, "second", 2, saved);
        ADD_FAILURE() << "taken";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  };
  job_.train.optimizer = "sgd";
  refused("was saved with the optimizer 'adamw', this job uses 'sgd'");
  job_.train.optimizer = "adamw";
  job_.model.hidden = 8;
  refused("holds another model: 'fc1.bias' is [9]");
}

}  // namespace
}  // namespace bimetal::train
