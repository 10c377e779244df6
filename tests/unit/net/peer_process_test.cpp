// Faults of whole processes and of the path between them: killed, stopped, cut off.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <thread>

#include "bimetal/base/error.h"
#include "unit/net/mesh_harness.h"
#include "unit/net/peer_process.h"

namespace bimetal::net {
namespace {

using namespace std::chrono_literals;
using namespace net::testing;
using ::testing::HasSubstr;

/// Answers every frame with an empty one of the same sequence number, for ever.
class Answering : public Recorder {
 public:
  explicit Answering(Mesh& mesh) : mesh_(mesh) {}
  void on_payload(int peer, const FrameHeader& header) override {
    mesh_.send(peer, data_header(header.sequence), {}, nullptr);
  }

 private:
  Mesh& mesh_;
};

void answer_for_ever(Mesh& mesh) {
  Answering answering(mesh);
  mesh.start(answering);
  for (;;) std::this_thread::sleep_for(1s);
}

void expect_gone(Recorder& recorder) {
  const auto loss = recorder.wait_for_loss(1);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->code(), ErrorCode::PeerLost);
  EXPECT_EQ(loss->rank(), 1);
  EXPECT_THAT(loss->what(), HasSubstr("rank 1 (127.0.0.1"));
}

// Stopped for several peer_timeouts, first with an open window, then with one that has been filled.
TEST(PeerProcess, StoppedOneIsKept) {
  PeerProcess peer(answer_for_ever);
  Recorder recorder;
  TcpMeshOptions options;
  options.heartbeat = 50ms;
  options.peer_timeout = 200ms;
  const std::string big(80 << 20, 'x');
  const auto mesh = peer.connect(options);
  mesh->start(recorder);
  peer.signal(SIGSTOP);
  std::this_thread::sleep_for(1500ms);
  EXPECT_FALSE(recorder.has_lost(1));
  mesh->send(1, data_header(1), bytes_of(big), nullptr);
  std::this_thread::sleep_for(3s);
  EXPECT_FALSE(recorder.has_lost(1));
  peer.signal(SIGCONT);
  EXPECT_TRUE(recorder.wait_for(1));
  EXPECT_FALSE(recorder.has_lost(1));
}

/// More than the kernel's buffers hold, so that the sender's end of the stream waits behind it.
void send_too_much(Mesh& mesh) {
  Recorder nobody;
  const std::string big(80 << 20, 'x');
  mesh.start(nobody);
  mesh.send(0, data_header(1), bytes_of(big), nullptr);
  for (;;) std::this_thread::sleep_for(1s);
}

// Nothing is read from a peer whose frame waits for its receiver, not even its end.
TEST(PeerProcess, StoppedThenKilledOneIsLostWhileNothingIsReadFromIt) {
  PeerProcess peer(send_too_much);
  Recorder recorder;
  recorder.pause(true);
  const auto mesh = peer.connect();
  mesh->start(recorder);
  ASSERT_TRUE(recorder.wait_for_headers(1));
  peer.signal(SIGSTOP);
  std::this_thread::sleep_for(500ms);
  EXPECT_FALSE(recorder.has_lost(1));
  peer.signal(SIGKILL);
  expect_gone(recorder);
}

TEST(PeerProcess, SocketsAreNotInherited) {
  auto meshes = connect_ranks(2);
  const TcpMeshBuilder listening(0, 2, {});
  for (int fd = 3; fd < 256; ++fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    int type = 0;
    socklen_t size = sizeof(type);
    if (flags < 0 || ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) continue;
    EXPECT_TRUE(flags & FD_CLOEXEC) << "descriptor " << fd;
  }
}

}  // namespace
}  // namespace bimetal::net
