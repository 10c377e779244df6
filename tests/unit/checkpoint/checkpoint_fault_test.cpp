// Checkpoints while the disk fills up, while the process is killed, and where files cannot be read.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <random>

#ifdef __linux__
#include <sched.h>
#endif

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "support/errors.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal::checkpoint {
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

/// Whether saving twice the usual size fails as it should: Error(System) with `words` and the path.
bool fails_to_save(const fs::path& dir, std::int64_t step, const std::string& words) {
  try {
    Vector(2 * kMegabyte).save(dir, step);
  } catch (const Error& error) {
    const std::string text = error.what();
    return error.code() == ErrorCode::System && text.find(words) != std::string::npos &&
           text.find((dir / fmt::format("step-{:08}", step)).string()) != std::string::npos;
  }
  return false;
}

/// Saves steps 1 and 2 (1 MB each), loses room, and tries a new step and step 2 again, both of
/// twice the size. 0 if that failed as it should and left steps 1 and 2 as they were.
int fail_to_save(const fs::path& dir, const std::function<void()>& take_room,
                 const std::string& words) {
  Vector(kMegabyte).save(dir, 1);
  Vector(kMegabyte).save(dir, 2);
  take_room();
  if (!fails_to_save(dir, 3, words)) return 10;
  if (!fails_to_save(dir, 2, words)) return 11;
  if (names_in(dir) != Names{"step-00000001", "step-00000002"}) return 12;
  return Vector(kMegabyte).load(dir) == 2 ? 0 : 13;
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
  expect_error(ErrorCode::System, {(folder / "file/checkpoints").string()},
               [&] { Vector(1).save(folder / "file/checkpoints", 1); });
}

/// Why a checkpoint cannot be loaded; nothing if it can.
std::optional<Error> refusal(const fs::path& dir) {
  return error_of([&] { Vector(1).load(dir); });
}

void expect_no_older_one_is_taken(const fs::path& dir, const fs::path& file, const char* words) {
  const auto error = refusal(dir);
  ASSERT_TRUE(error) << "an older checkpoint has been taken in place of " << file;
  EXPECT_EQ(error->code(), ErrorCode::System) << error->what();
  EXPECT_THAT(error->what(), ::testing::HasSubstr(file.string()));
  EXPECT_THAT(error->what(), ::testing::HasSubstr(words));
}

/// Takes from root the right to read everything, which would make permissions mean nothing.
class AsNobody {
 public:
  AsNobody() {
    if (was_root_ && seteuid(65534) != 0) throw std::runtime_error("cannot become nobody");
  }
  ~AsNobody() {
    if (was_root_ && seteuid(0) != 0) std::abort();
  }

 private:
  const bool was_root_ = geteuid() == 0;
};

TEST(CheckpointFault, AFileThatMayNotBeReadIsNoDamage) {
  const test::TemporaryFolder folder;
  chmod(folder.path().c_str(), 0755);
  Vector(1).save(folder.path(), 1);
  const auto newest = Vector(1).save(folder.path(), 2);
  for (const auto& file : {newest / "state.json", newest / "model.safetensors",
                           newest / "optimizer.safetensors", newest}) {
    struct stat before {};
    ASSERT_EQ(stat(file.c_str(), &before), 0);
    chmod(file.c_str(), 0);
    {
      const AsNobody nobody;
      expect_no_older_one_is_taken(folder.path(), file, "Permission denied");
    }
    chmod(file.c_str(), before.st_mode & 07777);
  }
  EXPECT_EQ(Vector(1).load(folder.path()), 2);
}

TEST(CheckpointFault, AFolderInPlaceOfAFileIsDamage) {
  const test::TemporaryFolder folder;
  Vector(1).save(folder.path(), 1);
  const auto newest = Vector(1).save(folder.path(), 2);
  fs::remove(newest / "state.json");
  fs::create_directory(newest / "state.json");
  EXPECT_EQ(Vector(1).load(folder.path()), 1);
  const auto error = refusal(newest);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::CorruptData);
  EXPECT_THAT(error->what(), ::testing::HasSubstr((newest / "state.json").string()));
  EXPECT_THAT(error->what(), ::testing::HasSubstr("it is a folder"));
}

TEST(CheckpointFault, ASaveThatCannotLookAtOlderOnesSavesNothing) {
  const test::TemporaryFolder folder;
  chmod(folder.path().c_str(), 0777);
  const auto newest = Vector(1).save(folder.path(), 1);
  chmod((newest / "state.json").c_str(), 0);
  {
    // Its place in the order would not be known: it could come to lie behind the one of step 1.
    const AsNobody nobody;
    EXPECT_TRUE(fails_to_save(folder.path(), 2, "Permission denied"));
  }
  EXPECT_EQ(names_in(folder.path()), Names{"step-00000001"});
}

TEST(CheckpointFault, WithoutFreeDescriptorsNothingIsHeldForDamagedOrMissing) {
  const test::TemporaryFolder folder;
  Vector(1).save(folder.path(), 1);
  Vector(1).save(folder.path(), 2);
  test::ForkedChild child([&] {
    const int free = open("/dev/null", O_RDONLY);
    const rlimit limit{static_cast<rlim_t>(free), static_cast<rlim_t>(free)};
    close(free);
    setrlimit(RLIMIT_NOFILE, &limit);
    const auto error = refusal(folder.path());
    if (!error) return 10;
    if (error->code() != ErrorCode::System) return 11;
    const std::string text = error->what();
    return text.find("Too many open files") != std::string::npos ? 0 : 12;
  });
  EXPECT_EQ(child.wait(), 0);
}

#ifdef __linux__
TEST(CheckpointFault, AFailedReadIsNoDamage) {
  const test::TemporaryFolder folder;
  Vector(1).save(folder.path(), 1);
  const auto newest = Vector(1).save(folder.path(), 2);
  fs::remove(newest / "state.json");
  fs::create_symlink("/proc/self/mem", newest / "state.json");  // whose first page nobody can read
  expect_no_older_one_is_taken(folder.path(), newest / "state.json", "Input/output error");
}
#endif

/// Saves one checkpoint after another until it is killed.
int save_for_ever(const fs::path& dir, std::int64_t first) {
  Vector vector(kMegabyte / 4);
  for (std::int64_t step = first;; ++step) vector.save(dir, step);
}

/// Until there is a checkpoint of a later step than `name`; false after a minute.
bool wait_for_later_than(const fs::path& dir, const std::string& name) {
  const auto deadline = Deadline::after(std::chrono::minutes(1));
  while (*names_in(dir).rbegin() <= name) {
    if (deadline.expired()) return false;
    usleep(200);
  }
  return true;
}

// Wherever in a save the process is killed, what loads afterwards is whole, no step is lost that
// was there before, and the next save removes what the killed one left.
TEST(CheckpointFault, AKilledSaveLeavesNothingThatLoadsDamaged) {
  constexpr int kRounds = 40;
  const test::TemporaryFolder folder;
  Vector vector(kMegabyte / 4);
  const Stopwatch watch;
  std::string newest = vector.save(folder.path(), 1).filename();
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<useconds_t> moment(
      0, static_cast<useconds_t>(2e6 * watch.seconds()));  // anywhere in the next save or two
  int leftovers = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto before = vector.load(folder.path());
    test::ForkedChild child([&] { return save_for_ever(folder.path(), before + 1); });
    ASSERT_TRUE(wait_for_later_than(folder.path(), newest));
    usleep(moment(random));
    child.kill_and_wait();
    for (const auto& name : names_in(folder.path())) leftovers += name[0] == '.';
    ASSERT_GT(vector.load(folder.path()), before) << "round " << round;
    newest = *names_in(folder.path()).rbegin();
  }
  EXPECT_GT(leftovers, 0) << "no child was ever killed while saving";
  vector.save(folder.path(), vector.load(folder.path()) + 1);
  for (const auto& name : names_in(folder.path())) EXPECT_NE(name[0], '.') << name;
}

}  // namespace
}  // namespace bimetal::checkpoint
