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

#include <optional>

#ifdef __linux__
#include <sched.h>
#endif

#include "bimetal/base/error.h"
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

}  // namespace
}  // namespace bimetal::checkpoint
