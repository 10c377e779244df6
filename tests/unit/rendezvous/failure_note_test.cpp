#include "bimetal/rendezvous/failure_note.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "unit/rendezvous/soon.h"

namespace bimetal::rendezvous {
namespace {

class FailureNote : public ::testing::Test {
 protected:
  std::unique_ptr<Store> client() { return connect_store(server_.endpoint(), token_, soon()); }

  const net::Token token_ = net::Token::generate();
  StoreServer server_{{"127.0.0.1", 0}, token_};
};

TEST_F(FailureNote, TheFirstIsReadByAll) {
  const auto here = client(), there = client();
  EXPECT_FALSE(noted_failure(*there, "fault", soon()));
  note_failure(*here, "fault", Error(ErrorCode::PeerLost, "rank 3 was killed", 3), soon());
  note_failure(*there, "fault", Error(ErrorCode::Timeout, "rank 0 waited"), soon());
  for (Store* store : {here.get(), there.get()}) {
    const auto failure = noted_failure(*store, "fault", soon());
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), ErrorCode::PeerLost);
    EXPECT_STREQ(failure->what(), "rank 3 was killed");
    EXPECT_EQ(failure->rank(), 3);
  }
  EXPECT_FALSE(noted_failure(*here, "another", soon()));
}

TEST_F(FailureNote, OneWithoutARankHasNone) {
  const auto store = client();
  note_failure(*store, "fault", Error(ErrorCode::System, "no room"), soon());
  EXPECT_EQ(noted_failure(*store, "fault", soon())->rank(), std::nullopt);
}

TEST_F(FailureNote, SomethingElseUnderItsKeyIsCorrupt) {
  const auto store = client();
  store->set("fault", "no note", soon());
  expect_error(ErrorCode::CorruptData, {}, [&] { noted_failure(*store, "fault", soon()); });
}

}  // namespace
}  // namespace bimetal::rendezvous
