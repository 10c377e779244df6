#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>

#include "bimetal/base/error.h"
#include "bimetal/base/files.h"
#include "support/forked_child.h"
#include "support/temporary_folder.h"

#ifdef __linux__
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

namespace bimetal {
namespace {

#ifdef __linux__

/// From now on every fsync() of this process fails so: what a disk that breaks looks like.
bool let_fsync_fail(int with) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fsync, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(with)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, rules};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// 0: it returned; 1: Error(System) that names the folder; 77: cannot be tried here.
int outcome_with(int failure, const std::filesystem::path& folder) {
  return test::ForkedChild([&] {
           if (!let_fsync_fail(failure)) return 77;
           try {
             sync_directory(folder);
             return 0;
           } catch (const Error& error) {
             const std::string text = error.what();
             const bool named = text.find(folder.string()) != std::string::npos;
             return error.code() == ErrorCode::System && named ? 1 : 2;
           }
         })
      .wait();
}

TEST(SyncDirectory, WhatCannotBeOpenedIsAnErrorUnlessItIsNotThere) {
  const test::TemporaryFolder folder;
  EXPECT_NO_THROW(sync_directory(folder.path() / "missing"));
  EXPECT_NO_THROW(sync_directory(""));  // of a name without a folder: here
  const auto file = folder.path() / "file";
  std::ofstream(file) << "no folder";
  EXPECT_THROW(sync_directory(file), Error);
}

TEST(SyncDirectory, AFailingDiskIsAnErrorAndAFolderThatKnowsNoSyncingIsNone) {
  const test::TemporaryFolder folder;
  if (outcome_with(EINVAL, folder.path()) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(outcome_with(EINVAL, folder.path()), 0);
  EXPECT_EQ(outcome_with(EOPNOTSUPP, folder.path()), 0);
  EXPECT_EQ(outcome_with(EIO, folder.path()), 1);
  EXPECT_EQ(outcome_with(ENOSPC, folder.path()), 1);
}

#endif

}  // namespace
}  // namespace bimetal
