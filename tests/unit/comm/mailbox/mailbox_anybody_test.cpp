// Receives of messages whose sender is not named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/comm/failure.h"
#include "unit/comm/mailbox/mailbox_fixture.h"

namespace bimetal::comm {
namespace {

using played::kGroup;
using played::MailboxTest;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MailboxFromAnybody : public MailboxTest {
 protected:
  void post_for_anybody(const Call& c, std::vector<std::byte>& into) {
    mailbox.receive_from_anybody(
        c.header_from(kGroup, 0), into, [this](int peer) { senders.push_back(peer); },
        [this] { ++done; });
  }
  void farewell_of(int peer) {
    net::FrameHeader h;
    h.kind = net::FrameKind::Abort;
    h.group = kGroup;
    const auto payload = encode(AbortMessage{});
    h.payload_bytes = payload.size();
    arrive(peer, h, payload);
  }

  std::vector<int> senders;
};

TEST_F(MailboxFromAnybody, TheReceiveThatHasWaitedLongestGetsTheMessage) {
  std::vector<std::byte> named(4), any(4), later(4);
  post(1, message(7), named);
  post_for_anybody(message(7), any);
  post(1, message(7), later);
  arrive(1, message(7), bytes(4, 10));
  EXPECT_EQ(named, bytes(4, 10));
  EXPECT_TRUE(senders.empty());
  arrive(1, message(7), bytes(4, 20));
  EXPECT_THAT(senders, ElementsAre(1));
  EXPECT_EQ(any, bytes(4, 20));
  arrive(1, message(7), bytes(4, 30));
  EXPECT_EQ(later, bytes(4, 30));
  EXPECT_EQ(done, 3);
}

TEST_F(MailboxFromAnybody, AMessageInPartsGoesToOneReceive) {
  std::vector<std::byte> first(6), second(6);
  post_for_anybody(message(7, 6), first);
  post_for_anybody(message(7, 6), second);
  arrive(1, message(7, 6), bytes(4, 10));
  arrive(2, message(7, 6), bytes(3, 50));
  arrive(1, message(7, 6), bytes(2, 14));
  EXPECT_EQ(done, 1);
  arrive(2, message(7, 6), bytes(3, 53));
  EXPECT_EQ(first, bytes(6, 10));
  EXPECT_EQ(second, bytes(6, 50));
  EXPECT_THAT(senders, ElementsAre(1, 2));
  EXPECT_EQ(done, 2);
}

TEST_F(MailboxFromAnybody, ARestThatIsStillToComeBelongsToTheSameReceive) {
  arrive(1, message(7, 6), bytes(4, 10));
  std::vector<std::byte> first(6), second(6);
  post_for_anybody(message(7, 6), first);
  post_for_anybody(message(7, 6), second);
  EXPECT_THAT(senders, ElementsAre(1));
  arrive(2, message(7, 6), bytes(6, 50));
  arrive(1, message(7, 6), bytes(2, 14));
  EXPECT_EQ(first, bytes(6, 10));
  EXPECT_EQ(second, bytes(6, 50));
  EXPECT_EQ(done, 2);
}

TEST_F(MailboxFromAnybody, OnePostedWhileAMessageArrivesGetsIt) {
  const auto h = header(message(7), 4);
  const auto place = mailbox.on_header(1, h);
  std::vector<std::byte> into(4);
  post_for_anybody(message(7), into);
  std::ranges::copy(bytes(4, 10), place.bytes.begin());
  mailbox.on_payload(1, h);
  EXPECT_EQ(into, bytes(4, 10));
  EXPECT_THAT(senders, ElementsAre(1));
}

TEST_F(MailboxFromAnybody, WhatAPausedPeerHoldsBackIsOffered) {
  EXPECT_TRUE(arrive(1, message(6, 900), bytes(900)));
  EXPECT_FALSE(arrive(1, message(7, 900), bytes(900)));
  std::vector<std::byte> into(900);
  post_for_anybody(message(7, 900), into);
  EXPECT_THAT(mesh.resumed, ElementsAre(1));
  EXPECT_TRUE(arrive(1, message(7, 900), bytes(900)));
  EXPECT_EQ(into, bytes(900));
}

TEST_F(MailboxFromAnybody, AMessageOfAnotherLengthEndsTheGroup) {
  std::vector<std::byte> into(4);
  post_for_anybody(message(7), into);
  arrive(2, message(7, 5), bytes(5));
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0].code, ErrorCode::CallMismatch);
  EXPECT_EQ(listener->failures[0].rank, 2);
}

TEST_F(MailboxFromAnybody, AFailedGroupGivesItUp) {
  std::vector<std::byte> into(4), late(4);
  post_for_anybody(message(7), into);
  mailbox.fail_group(kGroup);
  EXPECT_EQ(done, 1);
  post_for_anybody(message(7), late);
  EXPECT_EQ(done, 2);
}

TEST_F(MailboxFromAnybody, WaitsUntilTheLastRankHasLeft) {
  std::vector<std::byte> into(4);
  post_for_anybody(message(7), into);
  farewell_of(1);
  EXPECT_TRUE(listener->failures.empty());
  farewell_of(2);
  ASSERT_EQ(listener->failures.size(), 1u);
  EXPECT_EQ(listener->failures[0].code, ErrorCode::PeerLost);
  EXPECT_THAT(listener->failures[0].message, HasSubstr("all other ranks have left"));
}

}  // namespace
}  // namespace bimetal::comm
