// Messages whose parts lie in memory that their sender shares with this rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/comm/failure.h"
#include "bimetal/comm/shm/segment.h"
#include "unit/comm/mailbox/mailbox_fixture.h"

namespace bimetal::comm {
namespace {

using played::kGroup;
using played::MailboxTest;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

  /// Acts as peer 1 does with a part; false if it was paused.
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

TEST_F(MailboxMemory, APausedPeerIsSentNothingThroughMemorySinceItCannotSayWhatItHasFreed) {
  EXPECT_TRUE(place(message(3, 400), 0, bytes(400)));
  EXPECT_THAT(listener->words, IsEmpty());
  EXPECT_FALSE(arrive(1, message(4, 400), bytes(400)));
  EXPECT_THAT(listener->words, ElementsAre(std::pair{1, kRefusedPart}));
}

TEST_F(MailboxMemory, WhatAFailedGroupIsSentMakesRoom) {
  mailbox.fail_group(kGroup);
  EXPECT_TRUE(place(message(3, 400), 0, bytes(400)));
  mailbox.remove_group(kGroup, {});
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

TEST(AbortMessage, EveryCodeComesBack) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::Internal); ++code) {
    const Failure failure{static_cast<ErrorCode>(code), "why", 5};
    EXPECT_EQ(decode_abort(encode({failure})).failure, failure) << code;
  }
}

TEST(AbortMessage, MayBlameNobody) {
  const Failure failure{ErrorCode::Timeout, "", {}};
  EXPECT_EQ(decode_abort(encode({failure})).failure, failure);
}

TEST(AbortMessage, AFarewellHasNoFailure) {
  EXPECT_EQ(decode_abort(encode({})).failure, std::nullopt);
}

TEST(AbortMessage, LongTextsAreCut) {
  const auto bytes = encode({Failure{ErrorCode::Aborted, std::string(100000, 'x'), {}}});
  EXPECT_LE(bytes.size(), kMaxAbortBytes);
  EXPECT_GT(decode_abort(bytes).failure->message.size(), kMaxAbortBytes / 2);
}

TEST(AbortMessage, DamageIsNoticed) {
  const auto whole = encode({Failure{ErrorCode::Aborted, "why", 5}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(decode_abort(std::span(whole).first(size)), Error) << size;
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_abort(longer), Error);
  auto unknown = whole;
  unknown[0] = std::byte{200};
  EXPECT_THROW(decode_abort(unknown), Error);
}

}  // namespace
}  // namespace bimetal::comm
