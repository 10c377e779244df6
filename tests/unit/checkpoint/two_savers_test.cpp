// Two processes that both believe that they lead a job save into one folder.

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

namespace bimetal::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Lets one process wait for another.
class Gate {
 public:
  Gate() {
    if (::pipe(ends_.data()) != 0) throw system_error("pipe", errno);
  }
  ~Gate() {
    for (const int end : ends_) ::close(end);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() const { EXPECT_EQ(::write(ends_[1], "", 1), 1); }
  void wait() const {
    char byte = 0;
    EXPECT_EQ(::read(ends_[0], &byte, 1), 1);
  }

 private:
  std::array<int, 2> ends_{};
};

void save(const fs::path& dir, std::int64_t step, std::uint64_t term, const AdmitSave& admit) {
  NewCheckpoint fresh(dir, step, 5);
  Manifest manifest;
  manifest.state.step = step;
  manifest.state.term = term;
  manifest.optimizer = "sgd";
  for (const char* name : {kModelFile, kOptimizerFile}) manifest.files[name] = {};
  fresh.commit(std::move(manifest), admit);
}

// The checkpoint that the second is shown when it is admitted is still there when it renames.
TEST(TwoSavers, TakeTurns) {
  const test::TemporaryFolder folder;
  const Gate inside, go_on;
  test::ForkedChild first([&] {
    save(folder.path(), 1, 1, [&](const LastSave& newest) {
      if (newest.sequence != 0) throw Error(ErrorCode::Internal, "the folder was empty");
      inside.open();
      go_on.wait();
    });
    return 0;
  });
  inside.wait();
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    go_on.open();
  });
  LastSave seen;
  save(folder.path(), 2, 2, [&](const LastSave& newest) { seen = newest; });
  opener.join();
  EXPECT_EQ(first.wait(), 0);
  EXPECT_EQ(seen.sequence, 1u) << "it was admitted before the other had put its own into place";
  EXPECT_EQ(seen.term, 1u);
  EXPECT_EQ(last_save(folder.path()).sequence, 2u);
}

TEST(TwoSavers, OneThatIsNotAdmittedLeavesNothing) {
  const test::TemporaryFolder folder;
  save(folder.path(), 1, 2, {});
  const auto refuse = [](const LastSave& newest) {
    if (newest.term > 1) throw Error(ErrorCode::Timeout, "another leads");
  };
  EXPECT_THROW(save(folder.path(), 2, 1, refuse), Error);
  EXPECT_EQ(test::names_in(folder.path()), std::set<std::string>{"step-00000001"});
  save(folder.path(), 3, 3, {});  // the turn has been given back
}

}  // namespace
}  // namespace bimetal::checkpoint
