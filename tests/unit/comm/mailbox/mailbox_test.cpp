#include "bimetal/comm/mailbox/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bimetal/comm/mailbox/abort_message.h"
#include "bimetal/comm/shm/segment_address.h"

namespace bimetal::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::uint32_t kGroup = 4;
constexpr std::size_t kBudget = 1000;

// Rank 0 of 3, whose peers are played by the test.
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

  // What the mesh does with a frame; false if the peer was paused.
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

TEST_F(MailboxTest, APayloadLandsWhereItIsAwaited) {
  std::vector<std::byte> into(4);
  mailbox.open_call(kGroup, call(0));
  post(1, call(0), into);
  const auto place = mailbox.on_header(1, header(call(0), 4));
  EXPECT_EQ(place.bytes.data(), into.data());
  EXPECT_EQ(done, 0);
  mailbox.on_payload(1, header(call(0), 4));
  EXPECT_EQ(done, 1);
}

TEST_F(MailboxTest, WhatComesEarlyIsKept) {
  std::vector<std::byte> into(4);
  arrive(1, call(0), bytes(4));
  mailbox.open_call(kGroup, call(0));
  post(1, call(0), into);
  EXPECT_EQ(into, bytes(4));
  EXPECT_EQ(done, 1);
}

TEST_F(MailboxTest, FramesFillAReceiveInTheirOrder) {
  std::vector<std::byte> into(10);
  arrive(1, message(7, 10), bytes(4));
  arrive(1, message(7, 10), bytes(3, 4));
  post(1, message(7, 10), into);
  EXPECT_EQ(done, 0);
  arrive(1, message(7, 10), bytes(3, 7));
  EXPECT_EQ(done, 1);
  EXPECT_EQ(into, bytes(10));
}

TEST_F(MailboxTest, AReceivePostedWhileItsFrameArrivesGetsIt) {
  std::vector<std::byte> into(4);
  const auto h = header(message(7), 4);
  const auto place = mailbox.on_header(1, h);
  post(1, message(7), into);
  std::ranges::copy(bytes(4), place.bytes.begin());
  mailbox.on_payload(1, h);
  EXPECT_EQ(into, bytes(4));
  EXPECT_EQ(done, 1);
}

TEST_F(MailboxTest, MessagesMatchByPeerAndTagAndOrder) {
  std::vector<std::byte> a(4), b(4), c(4), d(4);
  post(1, message(1), a);
  post(1, message(1), b);
  post(1, message(2), c);
  post(2, message(1), d);
  arrive(1, message(2), bytes(4, 30));
  arrive(1, message(1), bytes(4, 10));
  arrive(2, message(1), bytes(4, 40));
  arrive(1, message(1), bytes(4, 20));
  EXPECT_EQ(done, 4);
  EXPECT_EQ(a, bytes(4, 10));
  EXPECT_EQ(b, bytes(4, 20));
  EXPECT_EQ(c, bytes(4, 30));
  EXPECT_EQ(d, bytes(4, 40));
}

TEST_F(MailboxTest, BeyondTheBudgetAPeerIsPausedUntilItsFramesAreTaken) {
  ASSERT_TRUE(arrive(1, message(1, 400), bytes(400)));
  EXPECT_FALSE(arrive(1, message(2, 400), bytes(400)));
  EXPECT_TRUE(arrive(2, message(2, 400), bytes(400))) << "each peer has a budget of its own";
  EXPECT_THAT(mesh.resumed, IsEmpty());
  std::vector<std::byte> into(400);
  post(1, message(1, 400), into);
  EXPECT_THAT(mesh.resumed, ElementsAre(1));
  EXPECT_TRUE(arrive(1, message(2, 400), bytes(400)));
}

TEST_F(MailboxTest, APausedPeerGoesOnWhenItsFrameIsAwaited) {
  ASSERT_TRUE(arrive(1, message(1, 400), bytes(400)));
  ASSERT_FALSE(arrive(1, message(2, 400), bytes(400)));
  std::vector<std::byte> into(400);
  post(1, message(2, 400), into);
  EXPECT_THAT(mesh.resumed, ElementsAre(1));
  EXPECT_TRUE(arrive(1, message(2, 400), bytes(400)));
  EXPECT_EQ(done, 1);
}

TEST_F(MailboxTest, EmptyFramesCountTowardsTheBudget) {
  int kept = 0;
  while (kept < 1000 && arrive(1, message(1, 0), {})) ++kept;
  EXPECT_LT(kept, 10);
}

TEST_F(MailboxTest, OversizedFramesEndTheConnection) {
  EXPECT_TRUE(mailbox.on_header(1, header(message(1), kMaxPartBytes + 1)).pause);
  EXPECT_THAT(mesh.dropped, ElementsAre(1));
}

TEST_F(MailboxTest, AnotherCallIsNoticedWhenItsFrameArrives) {
  mailbox.open_call(kGroup, call(0, 4));
  arrive(1, call(0, 5), bytes(5));
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0].code, ErrorCode::CallMismatch);
  EXPECT_TRUE(listener->told_others[0]);
}

TEST_F(MailboxTest, AnotherCallIsNoticedWhenItsFrameHasBeenWaiting) {
  arrive(1, call(0, 5), bytes(5));
  EXPECT_THAT(listener->failures, IsEmpty());
  mailbox.open_call(kGroup, call(0, 4));
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0].code, ErrorCode::CallMismatch);
}

TEST_F(MailboxTest, AnotherCallIsNoticedAfterOursIsFinished) {
  mailbox.open_call(kGroup, call(0, 4));
  mailbox.finish_call(kGroup, 0);
  arrive(1, call(0, 5), bytes(5));
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0].code, ErrorCode::CallMismatch);
}

TEST_F(MailboxTest, MoreFramesThanACallNeedsAreCorrupt) {
  mailbox.open_call(kGroup, call(0));
  arrive(1, call(0), bytes(4));
  mailbox.finish_call(kGroup, 0);
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0].code, ErrorCode::CorruptData);
}

TEST_F(MailboxTest, AFrameThatOverflowsItsReceiveIsCorrupt) {
  std::vector<std::byte> into(4);
  mailbox.open_call(kGroup, call(0));
  post(1, call(0), into);
  arrive(1, call(0), bytes(5));
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0].code, ErrorCode::CorruptData);
  EXPECT_EQ(into, std::vector<std::byte>(4));
}

TEST_F(MailboxTest, ProbesAreHeardOnceTheCallIsMade) {
  auto probe = header(call(0), 0);
  probe.part = kProbePart;
  arrive(2, probe, {});
  EXPECT_THAT(listener->signs, IsEmpty());
  mailbox.open_call(kGroup, call(0));
  EXPECT_THAT(listener->signs, ElementsAre(std::pair(2, 0u)));
  EXPECT_THAT(mesh.sent, IsEmpty());
}

TEST_F(MailboxTest, AProbeForAFinishedCallIsAnswered) {
  mailbox.open_call(kGroup, call(0));
  mailbox.finish_call(kGroup, 0);
  auto probe = header(call(0), 0);
  probe.part = kProbePart;
  arrive(2, probe, {});
  ASSERT_EQ(mesh.sent.size(), 1u);
  EXPECT_EQ(mesh.sent[0].first, 2);
  EXPECT_EQ(mesh.sent[0].second.part, kAnswerPart);
  arrive(2, mesh.sent[0].second, {});
  EXPECT_EQ(mesh.sent.size(), 1u) << "an answer was answered";
}

TEST_F(MailboxTest, ALostPeerIsReportedToItsGroups) {
  mailbox.on_lost(1, Error(ErrorCode::PeerLost, "rank 1 is gone"));
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0], (Failure{ErrorCode::PeerLost, "rank 1 is gone", 1}));
  const auto later = std::make_shared<RecordingListener>();
  mailbox.add_group(9, {0, 2}, later);
  EXPECT_THAT(later->failures, IsEmpty());
  const auto with_it = std::make_shared<RecordingListener>();
  mailbox.add_group(10, {0, 1}, with_it);
  EXPECT_EQ(with_it->failures.size(), 1u);
}

TEST_F(MailboxTest, AFailedGroupGivesItsReceivesBackOnceTheMeshIsThroughWithThem) {
  std::vector<std::byte> waiting(4), half_read(4);
  post(1, message(1), waiting);
  post(1, message(2), half_read);
  const auto h = header(message(2), 4);
  mailbox.on_header(1, h);
  mailbox.fail_group(kGroup);
  EXPECT_EQ(done, 1) << "the mesh still writes to one of them";
  mailbox.on_payload(1, h);
  EXPECT_EQ(done, 2);
  EXPECT_TRUE(arrive(1, message(3), bytes(4))) << "frames of a failed group are thrown away";
  post(1, message(3), waiting);
  EXPECT_EQ(done, 3);
}

TEST_F(MailboxTest, ALossGivesAHalfReadReceiveBackAfterTheFailureIsKnown) {
  std::vector<std::byte> into(4);
  bool failed_first = false;
  mailbox.receive(1, message(1).header_from(kGroup, 1), into,
                  [&] { failed_first = !listener->failures.empty(); });
  mailbox.on_header(1, header(message(1), 4));
  mailbox.on_lost(1, Error(ErrorCode::PeerLost, "rank 1 is gone"));
  EXPECT_TRUE(failed_first);
}

TEST_F(MailboxTest, AbortFramesEndTheGroup) {
  const Failure why{ErrorCode::NotFinite, "loss is NaN", 2};
  net::FrameHeader h;
  h.kind = net::FrameKind::Abort;
  h.group = kGroup;
  const auto payload = encode({why});
  h.payload_bytes = payload.size();
  arrive(1, h, payload);
  EXPECT_THAT(listener->failures, ElementsAre(why));
  EXPECT_TRUE(listener->told_others[0]);  // peer 1 may not reach them any more
}

TEST_F(MailboxTest, AnAbortThatComesBeforeItsGroupIsRemembered) {
  const Failure why{ErrorCode::Aborted, "enough", 1};
  net::FrameHeader h;
  h.kind = net::FrameKind::Abort;
  h.group = 77;
  const auto payload = encode({why});
  h.payload_bytes = payload.size();
  arrive(1, h, payload);
  const auto late = std::make_shared<RecordingListener>();
  mailbox.add_group(77, {0, 1}, late);
  EXPECT_THAT(late->failures, ElementsAre(why));
}

TEST_F(MailboxTest, AFarewellHurtsOnlyWhoStillWaits) {
  net::FrameHeader h;
  h.kind = net::FrameKind::Abort;
  h.group = kGroup;
  const auto payload = encode({});
  h.payload_bytes = payload.size();
  arrive(1, message(1), bytes(4));
  arrive(1, h, payload);
  EXPECT_THAT(listener->failures, IsEmpty());
  EXPECT_THAT(listener->words, ElementsAre(std::pair(1, kRefusedPart)));
  std::vector<std::byte> into(4);
  post(1, message(1), into);  // came before the farewell
  EXPECT_EQ(done, 1);
  EXPECT_THAT(listener->failures, IsEmpty());
  mailbox.on_lost(1, Error(ErrorCode::PeerLost, "rank 1 is gone"));
  EXPECT_THAT(listener->failures, IsEmpty());
  post(1, message(1), into);
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_THAT(listener->failures[0].message, HasSubstr("rank 1 (host-1) has left the group"));
}

TEST_F(MailboxTest, StrangersToAGroupAreDropped) {
  const auto pair = std::make_shared<RecordingListener>();
  mailbox.add_group(9, {0, 2}, pair);
  auto h = header(message(1), 4);
  h.group = 9;
  EXPECT_TRUE(mailbox.on_header(1, h).pause);
  EXPECT_THAT(mesh.dropped, ElementsAre(1));
}

TEST_F(MailboxTest, FramesOfAGroupThatIsGoneAreThrownAway) {
  mailbox.remove_group(kGroup);
  EXPECT_TRUE(arrive(1, message(1), bytes(4)));
  EXPECT_THAT(listener->failures, IsEmpty());
}

/// Peer 1 shares memory with this rank.
class MailboxMemory : public MailboxTest {
 protected:
  void SetUp() override {
    MailboxTest::SetUp();
    offer(ring.address());
    answers.clear();
  }

  void offer(const net::SegmentAddress& address) {
    WireWriter writer;
    write_address(writer, address);
    auto h = ring_word(kGroup, kOfferPart);
    h.payload_bytes = writer.bytes().size();
    EXPECT_TRUE(arrive(1, h, writer.bytes()));
    look();
  }

  /// What peer 1 does with a part; false if it was paused.
  bool place(const Call& c, std::uint32_t part, const std::vector<std::byte>& payload) {
    std::ranges::copy(payload, ring.next(payload.size()).begin());
    auto h = header(c, 0);
    h.part = kPlacedPart + part;
    const bool arrived = arrive(1, h, {});
    look();
    return arrived;
  }

  void look() {
    for (const auto& [peer, h] : mesh.sent) answers.push_back(h.part);
    mesh.sent.clear();
  }

  MessageRing ring = MessageRing::make();
  std::vector<std::uint32_t> answers;
};

TEST_F(MailboxMemory, APartLandsWhereItIsAwaitedAndItsSlotIsFreed) {
  std::vector<std::byte> into(kPartBytes + 5);
  const auto long_one = message(3, into.size());
  post(1, long_one, into);
  EXPECT_TRUE(place(long_one, 0, bytes(kPartBytes)));
  EXPECT_THAT(answers, ElementsAre(kFreedPart));
  EXPECT_EQ(done, 0);
  EXPECT_TRUE(place(long_one, 1, bytes(5, 7)));
  EXPECT_EQ(done, 1);
  EXPECT_EQ(into[kPartBytes - 1], static_cast<std::byte>(kPartBytes - 1));
  EXPECT_EQ(into.back(), std::byte{11});
}

TEST_F(MailboxMemory, PartsThatNobodyAwaitsAreKeptWithinTheBudgetAndThenPause) {
  const auto early = message(3, 400), later = message(4, 400);
  EXPECT_TRUE(place(early, 0, bytes(400)));
  EXPECT_FALSE(place(later, 0, bytes(400, 1)));
  EXPECT_THAT(answers, ElementsAre(kFreedPart));
  std::vector<std::byte> first(400), second(400);
  post(1, later, second);
  EXPECT_THAT(mesh.resumed, ElementsAre(1));
  auto again = header(later, 0);
  again.part = kPlacedPart;
  EXPECT_TRUE(arrive(1, again, {}));
  post(1, early, first);
  EXPECT_EQ(done, 2);
  EXPECT_EQ(first, bytes(400));
  EXPECT_EQ(second, bytes(400, 1));
}

TEST_F(MailboxMemory, WhatAFailedGroupIsSentMakesRoom) {
  mailbox.fail_group(kGroup);
  EXPECT_TRUE(place(message(3, 400), 0, bytes(400)));
  mailbox.remove_group(kGroup);
  EXPECT_TRUE(place(message(3, 400), 0, bytes(400)));
  EXPECT_THAT(answers, ElementsAre(kFreedPart, kFreedPart));
  EXPECT_THAT(mesh.dropped, IsEmpty());
}

TEST_F(MailboxMemory, MemoryThatCannotBeSeenIsRefused) {
  auto elsewhere = ring.address();
  elsewhere.nonce[0] ^= std::byte{1};
  offer(elsewhere);
  EXPECT_THAT(answers, ElementsAre(kRefusedPart));
}

TEST_F(MailboxMemory, PartsThatCannotBeThereEndTheConnection) {
  auto h = header(message(1, 400), 0);
  h.part = kPlacedPart + 1;  // of one
  EXPECT_FALSE(arrive(1, h, {}));
  h.part = kPlacedPart;
  EXPECT_FALSE(arrive(2, h, {})) << "which has offered nothing";
  h.payload_bytes = 4;
  EXPECT_FALSE(arrive(1, h, bytes(4)));
  EXPECT_THAT(mesh.dropped, ElementsAre(1, 2, 1));
}

}  // namespace
}  // namespace bimetal::comm
