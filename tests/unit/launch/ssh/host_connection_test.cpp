#include "bimetal/launch/ssh/host_connection.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "support/environment.h"
#include "support/temporary_folder.h"

namespace bimetal::launch {
namespace {

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
