// Faults of whole processes and of the path between them: killed, stopped, cut off.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#ifdef __linux__
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#endif

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

TEST(PeerProcess, KilledOneIsLost) {
  PeerProcess peer(answer_for_ever);
  Recorder recorder;
  const auto mesh = peer.connect();
  mesh->start(recorder);
  EXPECT_EQ(send_and_wait(*mesh, 1, "are you there"), nullptr);
  ASSERT_TRUE(recorder.wait_for(1));
  peer.signal(SIGKILL);
  expect_gone(recorder);
}

TEST(PeerProcess, OneThatExitsWithoutGoodbyeIsLost) {
  PeerProcess peer([](Mesh&) {});
  Recorder recorder;
  const auto mesh = peer.connect();
  mesh->start(recorder);
  expect_gone(recorder);
}

TEST(PeerProcess, OneThatSaysGoodbyeIsNot) {
  PeerProcess peer([](Mesh& mesh) { mesh.close(soon()); });
  Recorder recorder;
  const auto mesh = peer.connect();
  mesh->start(recorder);
  std::this_thread::sleep_for(1s);
  EXPECT_FALSE(recorder.has_lost(1));
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

TEST(PeerProcess, StoppedThenKilledOneIsLost) {
  PeerProcess peer(answer_for_ever);
  Recorder recorder;
  const auto mesh = peer.connect();
  mesh->start(recorder);
  peer.signal(SIGSTOP);
  std::this_thread::sleep_for(200ms);
  peer.signal(SIGKILL);
  expect_gone(recorder);
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

#ifdef __linux__
/// Switches the loopback interface of this process's network namespace.
bool switch_loopback(bool on) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::string("lo").copy(request.ifr_name, IFNAMSIZ);
  bool done = ::ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags =
      static_cast<short>(on ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  done = done && ::ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  ::close(fd);
  return done;
}

constexpr int kNoNamespace = 77;
constexpr int kLost = 0;
constexpr int kNotLost = 1;

/// In a network namespace of its own, whose only interface goes down under an idle mesh.
int pull_the_cable() {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 || !switch_loopback(true)) return kNoNamespace;
  Recorder recorder;
  auto meshes = connect_ranks(2);
  meshes[0]->start(recorder);
  std::this_thread::sleep_for(1s);
  if (recorder.has_lost(1) || !switch_loopback(false)) return kNotLost;
  const auto loss = recorder.wait_for_loss(1);
  return loss && loss->code() == ErrorCode::PeerLost ? kLost : kNotLost;
}

TEST(PeerProcess, UnreachableOneIsLost) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(pull_the_cable());
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoNamespace) GTEST_SKIP() << "no network namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), kLost);
}
#endif

}  // namespace
}  // namespace bimetal::net
