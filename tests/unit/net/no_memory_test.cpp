// Frames that do not fit into what memory is left.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#ifdef __linux__
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>

#include "bimetal/base/error.h"
#include "support/sanitized.h"
#include "unit/net/mesh_harness.h"
#include "unit/net/peer_process.h"

namespace bimetal::net {
namespace {

using namespace net::testing;
using ::testing::HasSubstr;

/// This process may take so many bytes more than it has, until destroyed.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t more) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit limit{pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + more,
                       before_.rlim_max};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) throw std::runtime_error("cannot limit the memory");
  }
  ~MemoryLimit() { ::setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_{};
};

void send_much(Mesh& mesh) {
  Recorder recorder;
  const std::string big(256 << 20, 'x');
  mesh.start(recorder);
  mesh.send(0, data_header(1), bytes_of(big), nullptr);
  recorder.wait_for_loss(0);
}

TEST(NoMemory, AFrameThatDoesNotFitEndsItsConnectionAlone) {
  if (bimetal::testing::kSanitized) GTEST_SKIP() << "sanitizers end a process without memory";
  PeerProcess peer(send_much);
  Recorder recorder;
  const auto mesh = peer.connect();
  std::optional<Error> loss;
  {
    const MemoryLimit limit(128 << 20);
    mesh->start(recorder);
    loss = recorder.wait_for_loss(1);
  }
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->code(), ErrorCode::OutOfMemory);
  EXPECT_THAT(loss->what(), HasSubstr("rank 1 (127.0.0.1"));
  EXPECT_EQ(loss->rank(), std::nullopt) << "it is not rank 1 that lacks memory";
}

}  // namespace
}  // namespace bimetal::net
#endif
