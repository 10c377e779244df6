#include "bimetal/comm/mailbox/mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "bimetal/comm/failure.h"
#include "unit/comm/mailbox/mailbox_fixture.h"

namespace bimetal::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using played::kGroup;
using played::MailboxTest;
using played::RecordingListener;

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
  mailbox.remove_group(kGroup, {});
  EXPECT_TRUE(arrive(1, message(1), bytes(4)));
  EXPECT_THAT(listener->failures, IsEmpty());
}

}  // namespace
}  // namespace bimetal::comm
