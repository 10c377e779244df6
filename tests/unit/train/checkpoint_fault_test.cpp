// Checkpoints while the disk fills up and while the process is killed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <random>

#ifdef __linux__
#include <sched.h>
#endif

#include "bimetal/base/error.h"
#include "bimetal/train/checkpoint.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal::train {
namespace {

namespace fs = std::filesystem;
using test::names_in;
using Names = std::set<std::string>;

/// One vector; a whole checkpoint of step n has it filled with n.
struct Vector : torch::nn::Module {
  explicit Vector(std::int64_t size) {
    torch::set_num_threads(1);  // so that a fork finds no other threads
    values = register_parameter("values", torch::zeros({size}));
  }
  fs::path save(const fs::path& dir, std::int64_t step) {
    const torch::NoGradGuard no_grad;
    values.fill_(static_cast<double>(step));
    return save_checkpoint(dir, *this, sgd(), {.step = step}, 2);
  }
  /// The step of what was loaded, -1 if its values are another's.
  std::int64_t load(const fs::path& dir) {
    auto optimizer = sgd();
    const auto step = load_checkpoint(dir, *this, optimizer).step;
    return values.eq(static_cast<double>(step)).all().item<bool>() ? step : -1;
  }
  torch::optim::SGD sgd() { return torch::optim::SGD(parameters(), torch::optim::SGDOptions(0.1)); }
  torch::Tensor values;
};

constexpr std::int64_t kMegabyte = 1 << 18;  // floats

/// Saves steps 1 and 2 (1 MB each), loses room, and tries step 3 of twice the size. 0 if that ended
/// in Error(System) with `words`, the new path named, and steps 1 and 2 as they were.
int fail_to_save(const fs::path& dir, const std::function<void()>& take_room,
                 const std::string& words) {
  Vector(kMegabyte).save(dir, 1);
  Vector(kMegabyte).save(dir, 2);
  take_room();
  try {
    Vector(2 * kMegabyte).save(dir, 3);
    return 10;
  } catch (const Error& error) {
    const std::string text = error.what();
    if (error.code() != ErrorCode::System || text.find(words) == std::string::npos) return 11;
    if (text.find((dir / "step-00000003").string()) == std::string::npos) return 12;
  }
  if (names_in(dir) != Names{"step-00000001", "step-00000002"}) return 13;
  return Vector(kMegabyte).load(dir) == 2 ? 0 : 14;
}

TEST(CheckpointFault, AFileThatMayNotGrowLeavesOlderOnesAlone) {
  const test::TemporaryFolder folder;
  test::ForkedChild child([&] {
    return fail_to_save(
        folder.path(),
        [] {
          signal(SIGXFSZ, SIG_IGN);
          const rlimit limit{3 << 19, 3 << 19};  // 1.5 MB
          setrlimit(RLIMIT_FSIZE, &limit);
        },
        "File too large");
  });
  EXPECT_EQ(child.wait(), 0);
}

#ifdef __linux__
TEST(CheckpointFault, AFullDiskLeavesOlderOnesAlone) {
  constexpr int kNotPermitted = 77;
  const test::TemporaryFolder folder;
  test::ForkedChild child([&] {
    // A disk of 4 MB that this child alone sees and that goes with it.
    const bool mounted = unshare(CLONE_NEWNS) == 0 &&
                         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=4m") == 0;
    if (!mounted) return kNotPermitted;
    return fail_to_save(
        folder.path(), [] {}, "No space left on device");
  });
  const int status = child.wait();
  if (status == kNotPermitted) GTEST_SKIP() << "mounting a small disk is not permitted here";
  EXPECT_EQ(status, 0);
}
#endif

TEST(CheckpointFault, AFolderThatCannotBeMadeIsNamed) {
  const test::TemporaryFolder folder;
  test::put_contents(folder / "file", "");
  try {
    Vector(1).save(folder / "file/checkpoints", 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::System);
    EXPECT_THAT(error.what(), ::testing::HasSubstr((folder / "file/checkpoints").string()));
  }
}

/// Saves one checkpoint after another until it is killed.
int save_for_ever(const fs::path& dir, std::int64_t first) {
  Vector vector(kMegabyte / 4);
  for (std::int64_t step = first;; ++step) vector.save(dir, step);
}

// Wherever in a save the process is killed, what loads afterwards is whole, no step is lost that
// was there before, and the next save removes what the killed one left.
TEST(CheckpointFault, AKilledSaveLeavesNothingThatLoadsDamaged) {
  constexpr int kRounds = 40;
  const test::TemporaryFolder folder;
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int> microseconds(0, 30'000);
  Vector vector(kMegabyte / 4);
  vector.save(folder.path(), 1);
  std::int64_t step = 1;
  int leftovers = 0;
  for (int round = 0; round < kRounds; ++round) {
    test::ForkedChild child([&] { return save_for_ever(folder.path(), step + 1); });
    usleep(static_cast<useconds_t>(microseconds(random)));
    child.kill_and_wait();
    for (const auto& name : names_in(folder.path())) leftovers += name[0] == '.';
    const std::int64_t loaded = vector.load(folder.path());
    ASSERT_GE(loaded, step) << "round " << round;
    step = loaded;
  }
  EXPECT_GT(step, 1) << "no child ever came to save anything";
  EXPECT_GT(leftovers, 0) << "no child was ever killed while saving";
  vector.save(folder.path(), step + 1);
  for (const auto& name : names_in(folder.path())) EXPECT_NE(name[0], '.') << name;
}

}  // namespace
}  // namespace bimetal::train
