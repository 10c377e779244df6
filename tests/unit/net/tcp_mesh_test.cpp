#include "bimetal/net/tcp/tcp_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "bimetal/base/error.h"
#include "unit/net/mesh_harness.h"

namespace bimetal::net {
namespace {

using namespace std::chrono_literals;
using namespace net::testing;
using ::testing::HasSubstr;

ErrorCode code_in(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.code();
  }
}

/// More than the kernel's buffers on both sides of a loopback connection ever hold.
std::string more_than_buffers() {
  return std::string(80 << 20, 'x');
}

/// Closes all at once, as the ranks of a job do.
void close_all(std::vector<std::unique_ptr<Mesh>>& meshes) {
  std::vector<std::thread> closing;
  for (auto& mesh : meshes) closing.emplace_back([&mesh] { mesh->close(soon()); });
  for (auto& thread : closing) thread.join();
}

// The order of calls holds between the mesh's own thread and others, too: an abort that a receiver
// sends is there before the goodbye of a rank that learns of it.
TEST(TcpMesh, WhatAReceiverSendsIsNotOvertaken) {
  struct Answers : Recorder {
    void on_payload(int, const FrameHeader&) override {
      mesh->send(1, data_header(1), {}, nullptr);
      answered.set_value();
      other_has_sent.get_future().wait();
    }
    Mesh* mesh = nullptr;
    std::promise<void> answered;
    std::promise<void> other_has_sent;
  };
  Answers answers;
  Recorder recorder;
  auto meshes = connect_ranks(2);
  answers.mesh = meshes[0].get();
  meshes[0]->start(answers);
  meshes[1]->start(recorder);
  ASSERT_EQ(send_and_wait(*meshes[1], 0, "a question"), nullptr);
  answers.answered.get_future().wait();
  meshes[0]->send(1, data_header(2), {}, nullptr);
  answers.other_has_sent.set_value();
  ASSERT_TRUE(recorder.wait_for(2));
  EXPECT_EQ(recorder.arrivals()[0].header.sequence, 1u);
  EXPECT_EQ(recorder.arrivals()[1].header.sequence, 2u);
  close_all(meshes);
}

TEST(TcpMesh, ManyThreadsMaySend) {
  Recorder recorder;
  auto meshes = connect_ranks(2);
  meshes[1]->start(recorder);
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  std::vector<std::thread> senders;
  for (int t = 0; t < kThreads; ++t) {
    senders.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        EXPECT_EQ(send_and_wait(*meshes[0], 1, std::string(100, 'a'), t * kEach + i), nullptr);
      }
    });
  }
  for (auto& sender : senders) sender.join();
  ASSERT_TRUE(recorder.wait_for(kThreads * kEach));
  std::set<std::uint64_t> seen;
  for (const Arrival& arrival : recorder.arrivals()) seen.insert(arrival.header.sequence);
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kThreads * kEach));
}

TEST(TcpMesh, PausedPeerHoldsItsSenderBackAndNobodyElse) {
  Recorder slow;
  Recorder other;
  const std::string big = more_than_buffers();
  auto meshes = connect_ranks(3);
  slow.pause(true);
  meshes[0]->start(slow);
  meshes[2]->start(other);
  std::promise<std::exception_ptr> done;
  auto sent = done.get_future();
  meshes[1]->send(0, data_header(7), bytes_of(big),
                  [&](std::exception_ptr error) { done.set_value(error); });
  EXPECT_EQ(send_and_wait(*meshes[1], 2, "not held back"), nullptr);
  EXPECT_TRUE(other.wait_for(1));
  ASSERT_TRUE(slow.wait_for_headers(1));
  EXPECT_EQ(sent.wait_for(300ms), std::future_status::timeout);
  EXPECT_EQ(slow.headers(), 1);

  meshes[0]->resume(1);  // offered again, and refused again
  ASSERT_TRUE(slow.wait_for_headers(2));
  EXPECT_EQ(sent.wait_for(50ms), std::future_status::timeout);

  slow.pause(false);
  meshes[0]->resume(1);
  ASSERT_TRUE(slow.wait_for(1));
  EXPECT_EQ(sent.get(), nullptr);
  EXPECT_TRUE(slow.arrivals()[0].payload == big);
}

TEST(TcpMesh, SendingToOneThatSaidGoodbyeIsALoss) {
  Recorder recorder;
  Recorder leaver;
  auto meshes = connect_ranks(2);
  meshes[0]->start(recorder);
  meshes[1]->start(leaver);
  meshes[1]->close(soon());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(code_in(send_and_wait(*meshes[0], 1, "too late")), ErrorCode::PeerLost);
  }
  const auto loss = recorder.wait_for_loss(1);
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->code(), ErrorCode::PeerLost);
  EXPECT_EQ(loss->rank(), 1);
  meshes[0]->close(soon());
  EXPECT_EQ(recorder.losses(1), 1);
}

TEST(TcpMesh, WhatWasSentBeforeCloseArrivesAtALateReader) {
  Recorder reader;
  const std::string text(10'000, 'z');
  auto meshes = connect_ranks(2);
  reader.pause(true);
  meshes[1]->start(reader);
  EXPECT_EQ(send_and_wait(*meshes[0], 1, text), nullptr);
  EXPECT_EQ(send_and_wait(*meshes[0], 1, text), nullptr);
  meshes[0]->close(Deadline::after(100ms));  // the reader cannot answer the goodbye yet
  meshes[0].reset();
  std::this_thread::sleep_for(1s);  // heartbeats meet a closed socket meanwhile
  EXPECT_FALSE(reader.has_lost(0));
  reader.pause(false);
  meshes[1]->resume(0);
  EXPECT_TRUE(reader.wait_for(2));
  meshes[1]->close(soon());
  EXPECT_FALSE(reader.has_lost(0));
}

TEST(TcpMesh, CloseGivesUpAtItsDeadline) {
  Recorder stuck;
  const std::string big = more_than_buffers();
  auto meshes = connect_ranks(2);
  stuck.pause(true);
  meshes[1]->start(stuck);
  std::exception_ptr ended;
  std::atomic<int> calls = 0;
  for (int i = 0; i < 2; ++i) {
    meshes[0]->send(1, data_header(0), bytes_of(big), [&](std::exception_ptr error) {
      ended = error;
      ++calls;
    });
  }
  meshes[0]->close(Deadline::after(200ms));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(code_in(ended), ErrorCode::Aborted);
}

TEST(TcpMesh, SendAfterCloseIsAborted) {
  auto meshes = connect_ranks(2);
  close_all(meshes);
  meshes[0]->close(soon());
  EXPECT_EQ(code_in(send_and_wait(*meshes[0], 1, "late")), ErrorCode::Aborted);
}

TEST(TcpMesh, LossBeforeStartIsReportedAtStart) {
  Recorder recorder;
  auto meshes = connect_ranks(2);
  meshes[1].reset();
  std::this_thread::sleep_for(300ms);
  meshes[0]->start(recorder);
  ASSERT_TRUE(recorder.wait_for_loss(1));
}

TEST(TcpMesh, DroppedPeerGivesBuffersBackOnBothSides) {
  Recorder near;
  Recorder far;
  const std::string big = more_than_buffers();
  auto meshes = connect_ranks(2);
  far.pause(true);
  meshes[0]->start(near);
  meshes[1]->start(far);
  std::promise<std::exception_ptr> done;
  meshes[0]->send(1, data_header(0), bytes_of(big),
                  [&](std::exception_ptr error) { done.set_value(error); });
  meshes[0]->drop(1);
  meshes[0]->drop(1);
  EXPECT_EQ(code_in(done.get_future().get()), ErrorCode::PeerLost);
  ASSERT_TRUE(near.wait_for_loss(1));
  far.pause(false);
  meshes[1]->resume(0);
  ASSERT_TRUE(far.wait_for_loss(0));
  EXPECT_TRUE(far.arrivals().empty());
  meshes[0]->close(soon());
  EXPECT_EQ(near.losses(1), 1);
}

TEST(TcpMesh, KnowsItsPeersByName) {
  Recorder recorder;
  TcpMeshBuilder zero(0, 2, {});
  TcpMeshBuilder one(1, 2, {});
  const std::vector<std::vector<Endpoint>> endpoints{zero.listening(), one.listening()};
  auto other = std::async(std::launch::async, [&] {
    return std::move(one).connect(endpoints, soon(), {"mac.local", "pc.local"});
  });
  const auto mesh = std::move(zero).connect(endpoints, soon(), {"mac.local", "pc.local"});
  EXPECT_EQ(mesh->host_of(1), "pc.local");
  mesh->start(recorder);
  other.get().reset();
  EXPECT_THAT(recorder.wait_for_loss(1)->what(), HasSubstr("rank 1 (pc.local, 127.0.0.1:"));
}

TEST(TcpMesh, RefusesImpossibleRanks) {
  EXPECT_THROW(TcpMeshBuilder(2, 2, {}), Error);
  EXPECT_THROW(TcpMeshBuilder(-1, 2, {}), Error);
  EXPECT_THROW(TcpMeshBuilder(0, 0, {}), Error);
  auto meshes = connect_ranks(2);
  EXPECT_THROW(meshes[0]->send(0, data_header(0), {}, nullptr), Error);
  EXPECT_THROW(meshes[0]->send(2, data_header(0), {}, nullptr), Error);
}

}  // namespace
}  // namespace bimetal::net
