#pragma once
// A mailbox whose mesh and peers are played by the test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/comm/mailbox/mailbox.h"

namespace bimetal::comm::played {

inline constexpr std::uint32_t kGroup = 4;
inline constexpr std::size_t kBudget = 1000;

/// Rank 0 of 3, whose peers are played by the test.
class RecordingMesh : public net::Mesh {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 3; }
  void start(net::FrameReceiver&) override {}
  void send(int peer, net::FrameHeader header, std::span<const std::byte>, net::SendDone) override {
    sent.emplace_back(peer, header);
  }
  void resume(int peer) override { resumed.push_back(peer); }
  void drop(int peer) override { dropped.push_back(peer); }
  void close(Deadline) override {}
  std::uint64_t bytes_sent() const noexcept override { return 0; }
  std::string host_of(int peer) const override { return "host-" + std::to_string(peer); }

  std::vector<std::pair<int, net::FrameHeader>> sent;
  std::vector<int> resumed, dropped;
};

class RecordingListener : public GroupListener {
 public:
  void on_failure(const Failure& failure, bool tell_others) override {
    failures.push_back(failure);
    told_others.push_back(tell_others);
  }
  void on_sign(int peer, std::uint64_t sequence) override { signs.emplace_back(peer, sequence); }
  void on_ring(int peer, std::uint32_t word) override { words.emplace_back(peer, word); }

  std::vector<Failure> failures;
  std::vector<bool> told_others;
  std::vector<std::pair<int, std::uint64_t>> signs;
  std::vector<std::pair<int, std::uint32_t>> words;
};

class MailboxTest : public ::testing::Test {
 protected:
  void SetUp() override { mailbox.add_group(kGroup, {0, 1, 2}, listener); }

  static Call call(std::uint64_t sequence, std::uint64_t count = 4) {
    return {.operation = Operation::broadcast,
            .dtype = DType::uint8,
            .count = count,
            .root = 1,
            .sequence = sequence};
  }
  static Call message(std::uint64_t tag, std::uint64_t count = 4) {
    return {
        .operation = Operation::send_recv, .dtype = DType::uint8, .count = count, .sequence = tag};
  }

  net::FrameHeader header(const Call& call, std::size_t bytes) const {
    auto h = call.header_to(kGroup, 0);
    h.payload_bytes = bytes;
    return h;
  }

  // Acts as the mesh does with a frame; false if the peer was paused.
  bool arrive(int peer, const net::FrameHeader& h, const std::vector<std::byte>& payload) {
    const auto place = mailbox.on_header(peer, h);
    if (place.pause) return false;
    EXPECT_EQ(place.bytes.size(), payload.size());
    std::ranges::copy(payload, place.bytes.begin());
    mailbox.on_payload(peer, h);
    return true;
  }
  bool arrive(int peer, const Call& c, const std::vector<std::byte>& payload) {
    return arrive(peer, header(c, payload.size()), payload);
  }

  void post(int peer, const Call& c, std::vector<std::byte>& into) {
    mailbox.receive(peer, c.header_from(kGroup, peer), into, [this] { ++done; });
  }

  static std::vector<std::byte> bytes(std::size_t size, int first = 0) {
    std::vector<std::byte> result(size);
    for (std::size_t i = 0; i < size; ++i) result[i] = static_cast<std::byte>(first + i);
    return result;
  }

  RecordingMesh mesh;
  std::shared_ptr<RecordingListener> listener = std::make_shared<RecordingListener>();
  Mailbox mailbox{mesh, kBudget};
  int done = 0;
};

}  // namespace bimetal::comm::played
