// Checkpoints of which each rank writes and reads its part.

#include "bimetal/checkpoint/slices/save_slices.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>
#include <unistd.h>

#include <random>

#ifdef __linux__
#include <sys/fsuid.h>
#endif

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"
#include "unit/checkpoint/small_net.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;
using test::names_in;
using ::testing::HasSubstr;

/// A model of two tensors: one is cut into flat ranges, the other into boxes; and one that rank 0
/// has. Values are those of the step.
struct Parted {
  explicit Parted(std::int64_t rows = 40) : shape{rows, 7} {
    torch::set_num_threads(1);  // so that a fork finds no other threads
  }

  torch::Tensor weight(std::int64_t step) const {
    return torch::arange(shape[0] * shape[1], torch::kFloat64).view(shape) + 1000.0 * double(step);
  }
  torch::Tensor table(std::int64_t step) const {
    return torch::arange(24, torch::kFloat32).view({4, 6}) * double(step);
  }

  /// By `shares`, of `weight` and its state; of `table` each rank has some columns.
  OwnSlices of_rank(int rank, const std::vector<int>& shares, std::int64_t step) const {
    std::int64_t begin = 0, all = 0;
    for (const int share : shares) all += share;
    for (int i = 0; i < rank; ++i) begin += shares[static_cast<std::size_t>(i)];
    const auto total = shape[0] * shape[1];
    const auto first = begin * total / all;
    const auto end = (begin + shares[static_cast<std::size_t>(rank)]) * total / all;
    OwnSlices own;
    if (end > first) {
      const auto part = weight(step).flatten().slice(0, first, end);
      own.model.push_back({"weight", shape, flat_range(first, end - first), part});
      own.optimizer.push_back({"weight.exp_avg", shape, flat_range(first, end - first), part / 2});
      own.optimizer.push_back({"weight.step", {}, whole_slice({}), torch::tensor(step)});
    }
    const std::int64_t ranks = static_cast<std::int64_t>(shares.size());
    const auto from = rank * 6 / ranks, to = (rank + 1) * 6 / ranks;
    own.model.push_back(
        {"table", {4, 6}, {{0, from}, {4, to - from}}, table(step).slice(1, from, to)});
    if (rank == 0)
      own.model.push_back(
          {"mean", {3}, whole_slice(std::vector<std::int64_t>{3}), torch::full({3}, double(step))});
    return own;
  }

  std::vector<std::int64_t> shape;
};

const OptimizerFacts kAdam = {"adam", nlohmann::ordered_json::array()};

fs::path save_all(
    const fs::path& dir, const Parted& model, const std::vector<int>& shares, std::int64_t step,
    const std::function<void(int rank)>& before = [](int) {}) {
  // For a forked process, whose copy of torch's threads is of no use. torch makes new threads at
  // their first use, in which two ranks must not race ("Invalid thread pool" of
  // ParallelOpenMP.cpp).
  torch::set_num_threads(1);
  fs::path saved;
  testing::run_ranks(static_cast<int>(shares.size()), [&](int rank, comm::Group group) {
    before(rank);
    job::CheckpointConfig config;
    config.dir = dir.string();
    config.keep = 2;
    TrainingState state;
    state.step = step;
    const auto path = save_slices(group, config, model.of_rank(rank, shares, step), kAdam, state);
    if (rank == 0) saved = path;
  });
  return saved;
}

/// Whether a checkpoint has the values of its step.
bool holds_its_step(const fs::path& path, const Parted& model) {
  auto opened = find_checkpoint(path);
  const auto step = opened.manifest().state.step;
  const auto tensors = opened.read_all(opened.index().model);
  const auto states = opened.read_all(opened.index().optimizer);
  return tensors.size() == 3 && tensors.at("weight").equal(model.weight(step)) &&
         tensors.at("table").equal(model.table(step)) &&
         tensors.at("mean").eq(double(step)).all().item<bool>() && states.size() == 2 &&
         states.at("weight.exp_avg").equal(model.weight(step) / 2) &&
         states.at("weight.step").item<std::int64_t>() == step;
}

/// Any ranks read any slices: here, and, where `unseen`, all but rank 0 by way of rank 0.
void expect_readable(const fs::path& path, const Parted& model, std::int64_t step,
                     const std::function<void(int rank)>& before) {
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    before(rank);
    SharedReader saved(group, rank == 0 ? std::optional(path) : std::nullopt);
    ASSERT_TRUE(saved.found());
    EXPECT_EQ(saved.state().step, step);
    saved.each_takes([&](const SharedReader::Read& read) {
      const auto total = model.shape[0] * model.shape[1];
      const auto first = rank * total / 3, count = (rank + 1) * total / 3 - first;
      const auto expected = model.weight(step).flatten().narrow(0, first, count);
      EXPECT_TRUE(read.model("weight", flat_range(first, count)).equal(expected));
      EXPECT_TRUE(read.optimizer("weight.exp_avg", flat_range(first, count)).equal(expected / 2));
      const auto rows = read.model("table", {{rank, 1}, {2, 5}});
      EXPECT_TRUE(rows.equal(model.table(step).narrow(0, rank, 2).narrow(1, 1, 5)));
      EXPECT_EQ(read.optimizer("weight.step", whole_slice({})).item<std::int64_t>(), step);
    });
  });
}

TEST(SaveSlices, AnyRanksReadAnySlices) {
  const test::TemporaryFolder folder;
  const Parted model;
  const auto path = save_all(folder.path(), model, {5, 2, 0}, 3);
  expect_readable(path, model, 3, [](int) {});
}

#ifdef __linux__
/// Takes a rank's thread the right to look into folders of root's.
void see_nothing(int rank) {
  if (rank > 0) setfsuid(65534);
}

// Machines without a common folder: what they keep travels to rank 0 and back, in pieces.
TEST(SaveSlices, RanksThatDoNotSeeTheFolderSendAndAsk) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can take a thread's rights";
  const test::TemporaryFolder folder;
  chmod(folder.path().c_str(), 0700);
  const Parted model(200'000);  // some pieces
  const auto path = save_all(folder.path(), model, {1, 3, 2}, 4, see_nothing);
  struct stat sent {};
  ASSERT_EQ(stat((path / "model-00001-of-00003.safetensors").c_str(), &sent), 0);
  EXPECT_EQ(sent.st_uid, 0u) << "rank 1 has written its part itself";
  EXPECT_TRUE(holds_its_step(path, model));
  expect_readable(path, model, 4, see_nothing);
}

TEST(SaveSlices, AFolderThatCanOnlyBeReadIsWrittenByRank0) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can take a thread's rights";
  const test::TemporaryFolder folder;
  chmod(folder.path().c_str(), 0755);
  const Parted model;
  EXPECT_TRUE(holds_its_step(save_all(folder.path(), model, {1, 3}, 4, see_nothing), model));
}
#endif

/// The error of all ranks, which must be the same; empty if the save went well.
std::string trouble_of(const fs::path& dir, const Parted& model, const std::vector<int>& shares,
                       std::int64_t step, const std::function<void(int)>& before) {
  std::vector<std::string> said(shares.size());
  testing::run_ranks(static_cast<int>(shares.size()), [&](int rank, comm::Group group) {
    before(rank);
    job::CheckpointConfig config;
    config.dir = dir.string();
    TrainingState state;
    state.step = step;
    try {
      save_slices(group, config, model.of_rank(rank, shares, step), kAdam, state);
    } catch (const Error& error) {
      said[static_cast<std::size_t>(rank)] = error.what();
      if (error.code() != ErrorCode::System) said[static_cast<std::size_t>(rank)] = "no system's";
    }
  });
  for (const auto& text : said) {
    if (text != said.front()) return "ranks differ: " + text + " | " + said.front();
  }
  return said.front();
}

/// Rank 1 has no room for its part. 0 if all ranks say so and nothing of the attempt is left.
int fail_on_rank_1(const fs::path& dir, const std::function<void(int)>& before) {
  signal(SIGXFSZ, SIG_IGN);
  const Parted model(50'000);  // 2.8 MB
  save_all(dir, model, {1, 1}, 1);
  const rlimit limit{1 << 20, 1 << 20};
  setrlimit(RLIMIT_FSIZE, &limit);
  const auto said = trouble_of(dir, model, {1, 9}, 2, before);
  for (const std::string part :
       {"step-00000002: rank 1: cannot write ", "00001-of-00002.safetensors", "File too large"}) {
    if (said.find(part) == std::string::npos) return std::fputs((said + "\n").c_str(), stderr), 10;
  }
  if (names_in(dir) != std::set<std::string>{"step-00000001"}) return 11;
  return holds_its_step(dir, model) ? 0 : 12;
}

TEST(SaveSlices, AFullDiskOfOneRankLeavesTheOlderOneAlone) {
  const test::TemporaryFolder folder;
  test::ForkedChild child([&] { return fail_on_rank_1(folder.path(), [](int) {}); });
  EXPECT_EQ(child.wait(), 0);
}

TEST(SaveSlices, WhatRank0CannotMakeAllRanksHearOf) {
  const test::TemporaryFolder folder;
  test::put_contents(folder / "file", "no folder");
  const auto said = trouble_of(folder / "file", Parted(), {1, 1}, 2, [](int) {});
  EXPECT_THAT(said, HasSubstr("rank 0: cannot make the checkpoint folder"));
}

TEST(SaveSlices, AFolderOfAnyNameIsReplacedAndNothingElseRemoved) {
  const test::TemporaryFolder folder;
  const Parted model;
  for (const std::int64_t step : {1, 2, 3}) {
    const auto target = folder / (step == 1 ? "first" : "second");
    testing::run_ranks(2, [&](int rank, comm::Group group) {
      Manifest facts;
      facts.state.step = step;
      facts.optimizer = "adam";
      facts.optimizer_groups = kAdam.groups;
      facts.loop = fmt::format("[{}, NaN]", step);  // its own words, whatever they are
      save_slices_as(group, target, model.of_rank(rank, {3, 1}, step), facts);
      SharedReader saved(group, rank == 0 ? std::optional(target) : std::nullopt);
      EXPECT_EQ(saved.loop(), facts.loop);
    });
    EXPECT_TRUE(holds_its_step(target, model));
  }
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"first", "second"}));
}

/// The error of both ranks, in the same words, for a save as `target` that InvalidArgument ends.
std::string refusal_of(
    const fs::path& target,
    const std::function<void(int rank, OwnSlices& own)>& change = [](int, OwnSlices&) {}) {
  std::vector<std::string> said(2);
  testing::run_ranks(2, [&](int rank, comm::Group group) {
    auto own = Parted().of_rank(rank, {1, 1}, 1);
    change(rank, own);
    Manifest facts;
    facts.optimizer = "adam";
    facts.optimizer_groups = kAdam.groups;
    try {
      save_slices_as(group, target, own, facts);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument) << error.what();
      said[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  EXPECT_EQ(said[0], said[1]);
  return said[0];
}

TEST(SaveSlices, WhatIsNoCheckpointIsNeverReplaced) {
  const test::TemporaryFolder folder;
  fs::create_directory(folder / "mine");
  test::put_contents(folder / "mine" / "notes", "of years");
  test::put_contents(folder / "file", "too");
  for (const auto* name : {"mine", "file"}) {
    EXPECT_THAT(refusal_of(folder / name), HasSubstr("is there and is no checkpoint"));
  }
  EXPECT_EQ(test::contents_of(folder / "mine" / "notes"), "of years");
  EXPECT_EQ(test::contents_of(folder / "file"), "too");
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"file", "mine"}));
  fs::create_directory(folder / "empty");
  EXPECT_EQ(refusal_of(folder / "empty"), "");
  EXPECT_EQ(refusal_of(folder / "empty"), "");  // a checkpoint now
}

TEST(SaveSlices, WhatNoFileHoldsAllRanksRefuse) {
  const test::TemporaryFolder folder;
  const auto said = refusal_of(folder / "one", [](int rank, OwnSlices& own) {
    if (rank == 0) return;
    own.model.push_back({"phase",
                         {2},
                         whole_slice(std::vector<std::int64_t>{2}),
                         torch::zeros({2}, c10::kComplexFloat)});
  });
  EXPECT_THAT(said, HasSubstr("rank 1: tensor 'phase' is of type ComplexFloat"));
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{});
}

#ifdef __linux__
TEST(SaveSlices, AFullDiskOfRank0EndsWhatIsSentToIt) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can take a thread's rights";
  const test::TemporaryFolder folder;
  chmod(folder.path().c_str(), 0700);
  test::ForkedChild child([&] {
    const Parted model(400'000);
    save_all(folder.path(), Parted(10), {1, 1}, 1);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5 << 20, 5 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto said = trouble_of(folder.path(), model, {1, 9}, 2, see_nothing);
    if (said.find("rank 0: cannot write ") == std::string::npos) return 10;
    if (said.find("model-00001-of-00002") == std::string::npos) return 11;
    return names_in(folder.path()) == std::set<std::string>{"step-00000001"} ? 0 : 12;
  });
  EXPECT_EQ(child.wait(), 0);
}
#endif

// Wherever in a save the ranks are killed, what loads afterwards is whole.
TEST(SaveSlices, KilledSavesLeaveNothingThatLoadsDamaged) {
  constexpr int kRounds = 15;
  const test::TemporaryFolder folder;
  const Parted model(20'000);
  torch::set_num_threads(1);
  const Stopwatch watch;
  test::ForkedChild([&] { return save_all(folder.path(), model, {2, 1}, 1), 0; }).wait();
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<useconds_t> moment(0,
                                                   static_cast<useconds_t>(2e6 * watch.seconds()));
  int leftovers = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto before = last_save(folder.path()).step;
    test::ForkedChild child([&] {
      for (auto step = before + 1;; ++step) save_all(folder.path(), model, {2, 1}, step);
      return 0;
    });
    const auto deadline = Deadline::after(std::chrono::minutes(1));
    while (last_save(folder.path()).step == before && !deadline.expired()) usleep(500);
    usleep(moment(random));
    child.kill_and_wait();
    for (const auto& name : names_in(folder.path())) leftovers += name[0] == '.';
    ASSERT_TRUE(holds_its_step(folder.path(), model)) << "round " << round;
    ASSERT_GT(find_checkpoint(folder.path()).manifest().state.step, before);
  }
  EXPECT_GT(leftovers, 0) << "no save was ever interrupted";
  test::ForkedChild([&] { return save_all(folder.path(), model, {2, 1}, 1 << 20), 0; }).wait();
  for (const auto& name : names_in(folder.path())) EXPECT_NE(name[0], '.') << name;
}

}  // namespace
}  // namespace bimetal::checkpoint
