// The tests' own mesh keeps the contract of net/mesh.h.
#include "support/in_process_mesh.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace bimetal::testing {
namespace {

constexpr auto kLong = std::chrono::minutes(1);

// Collects what arrives, into one slot of memory per frame.
class Collector : public net::FrameReceiver {
 public:
  Placement on_header(int, const net::FrameHeader& header) override {
    if (pausing) {
      paused.set_value();
      pausing = false;
      return {{}, true};
    }
    memory.emplace_back(header.payload_bytes);
    return {memory.back()};
  }
  void on_payload(int, const net::FrameHeader& header) override {
    parts.push_back(header.part);
    if (parts.size() == awaited) complete.set_value();
  }
  void on_lost(int peer, const Error&) override { lost.set_value(peer); }

  std::size_t awaited = 1;
  std::atomic<bool> pausing{false};
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::uint32_t> parts;
  std::promise<void> complete, paused;
  std::promise<int> lost;
};

net::FrameHeader part(std::uint32_t number) {
  net::FrameHeader header;
  header.part = number;
  return header;
}

class InProcessMesh : public ::testing::Test {
 protected:
  InProcessMesh() : meshes(make_in_process_meshes(2)) {
    for (int rank = 0; rank < 2; ++rank) meshes[rank]->start(collectors[rank]);
  }
  ~InProcessMesh() override {
    for (auto& mesh : meshes) {
      if (mesh) mesh->close(Deadline::after(std::chrono::seconds(0)));
    }
  }

  Collector collectors[2];
  std::vector<std::unique_ptr<net::Mesh>> meshes;
};

TEST_F(InProcessMesh, DeliversInOrderAndTellsTheSender) {
  const std::vector<std::byte> payload(100, std::byte{7});
  std::promise<std::exception_ptr> sent;
  collectors[1].awaited = 3;
  meshes[0]->send(1, part(0), {}, nullptr);
  meshes[0]->send(1, part(1), payload, nullptr);
  meshes[0]->send(1, part(2), payload, [&](std::exception_ptr error) { sent.set_value(error); });
  ASSERT_EQ(collectors[1].complete.get_future().wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(sent.get_future().get(), nullptr);
  EXPECT_EQ(collectors[1].parts, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(collectors[1].memory[2], payload);
}

TEST_F(InProcessMesh, APausedFrameIsOfferedAgain) {
  collectors[1].pausing = true;
  meshes[0]->send(1, part(5), {}, nullptr);
  ASSERT_EQ(collectors[1].paused.get_future().wait_for(kLong), std::future_status::ready);
  meshes[1]->resume(0);
  ASSERT_EQ(collectors[1].complete.get_future().wait_for(kLong), std::future_status::ready);
}

TEST_F(InProcessMesh, AMeshDestroyedWithoutGoodbyeIsLost) {
  meshes[0].reset();
  auto lost = collectors[1].lost.get_future();
  ASSERT_EQ(lost.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(lost.get(), 0);
}

TEST_F(InProcessMesh, AnOrderlyGoodbyeIsNoLossUntilSomethingIsSent) {
  meshes[0]->close(Deadline::after(kLong));
  auto lost = collectors[1].lost.get_future();
  EXPECT_EQ(lost.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  std::promise<std::exception_ptr> sent;
  meshes[1]->send(0, part(0), {}, [&](std::exception_ptr error) { sent.set_value(error); });
  EXPECT_NE(sent.get_future().get(), nullptr);
  EXPECT_EQ(lost.get(), 0);
}

TEST_F(InProcessMesh, ADroppedPathEndsOnBothSidesAndGivesMemoryBack) {
  collectors[1].pausing = true;
  std::promise<std::exception_ptr> sent;
  meshes[0]->send(1, part(0), {}, [&](std::exception_ptr error) { sent.set_value(error); });
  ASSERT_EQ(collectors[1].paused.get_future().wait_for(kLong), std::future_status::ready);
  meshes[0]->drop(1);
  EXPECT_NE(sent.get_future().get(), nullptr);
  EXPECT_EQ(collectors[0].lost.get_future().get(), 1);
  EXPECT_EQ(collectors[1].lost.get_future().get(), 0);
}

}  // namespace
}  // namespace bimetal::testing
