
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "bimetal/launch/ssh/host_connection.h"
#include "support/environment.h"
#include "support/temporary_folder.h"

namespace bimetal::launch {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(SshCommand, QuotesForAnyShell) {
  EXPECT_EQ(shell_quoted("/opt/my tools/it's"), "'/opt/my tools/it'\\''s'");
}

TEST(SshCommand, AsksNothingAndEndsItsOptions) {
  SshOptions ssh;
  ssh.port = 2222;
  ssh.options = {"IdentityFile=key"};
  const auto arguments = ssh_arguments(ssh, "me@host2", "/opt/bimetal");
  EXPECT_THAT(arguments, Contains("BatchMode=yes"));
  EXPECT_THAT(arguments, Contains("2222"));
  EXPECT_THAT(arguments, Contains("IdentityFile=key"));
  ASSERT_GE(arguments.size(), 3u);
  EXPECT_EQ(arguments[arguments.size() - 3], "--");
  EXPECT_EQ(arguments[arguments.size() - 2], "me@host2");
  EXPECT_THAT(arguments.back(), HasSubstr("/opt/bimetal"));
}

struct Case {
  const char* said;
  int status;
  ErrorCode code;
  const char* advice;
};

class SshFailure : public ::testing::TestWithParam<Case> {};

TEST_P(SshFailure, IsExplained) {
  const auto& [said, status, code, advice] = GetParam();
  SshOptions ssh;
  ssh.port = 2222;
  const auto error = explain_ssh_failure(ssh, "host2", {status, 0}, said);
  EXPECT_EQ(error.code(), code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("host2"));
  EXPECT_THAT(error.what(), HasSubstr(advice));
}

INSTANTIATE_TEST_SUITE_P(
    OfOpenSsh, SshFailure,
    ::testing::Values(
        Case{"ssh: connect to host host2 port 2222: Connection refused\r\n", 255, ErrorCode::System,
             "--ssh-port"},
        Case{"ssh: connect to host host2 port 22: Connection timed out\r\n", 255,
             ErrorCode::Timeout, "firewall"},
        Case{"ssh: Could not resolve hostname host2: Name or service not known\r\n", 255,
             ErrorCode::System, "no host of that name"},
        Case{"Warning: Permanently added\r\nme@host2: Permission denied (publickey).\r\n", 255,
             ErrorCode::Unauthorized, "ssh-copy-id"},
        Case{"Host key verification failed.\r\n", 255, ErrorCode::Unauthorized,
             "ssh -p 2222 host2 true"},
        Case{"sh: 1: exec: bimetal: not found\n", 127, ErrorCode::InvalidArgument,
             "--remote-bimetal"},
        Case{"The following argument was not expected: launch-agent\n", 2,
             ErrorCode::ProtocolMismatch, "same version"},
        Case{"", 255, ErrorCode::System, "no reason"}));

using std::chrono::milliseconds;

/// A program by the name of ssh that greets as an agent does, and then says nothing.
class SilentHost : public ::testing::Test {
 protected:
  SilentHost() {
    const auto ssh = folder_.path() / "ssh";
    test::put_contents(ssh, "#!/bin/sh\necho bimetal-agent\nexec cat\n");
    std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  }

  test::TemporaryFolder folder_;
  test::Environment path_{"PATH", folder_.path().string() + ":" + std::getenv("PATH")};
};

// Output that nobody reads (| less) stops the reading of agents, for as long as that may take.
TEST_F(SilentHost, IsSilentOnlyWhileSomebodyListens) {
  HostConnection host("elsewhere", false, {});
  std::this_thread::sleep_for(milliseconds(300));
  host.exchange(true);  // the greeting, perhaps
  std::this_thread::sleep_for(milliseconds(300));
  host.exchange(true);
  std::this_thread::sleep_for(milliseconds(100));
  host.exchange(true);
  const auto before = host.silent_for();
  EXPECT_GE(before, milliseconds(100));
  host.exchange(false);
  EXPECT_LT(host.silent_for(), before);
  EXPECT_FALSE(host.ended());
  host.hang_up();
}

}  // namespace
}  // namespace bimetal::launch
