#include "bimetal/rendezvous/survivors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "support/errors.h"
#include "unit/rendezvous/soon.h"

namespace bimetal::rendezvous {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Survivors : public ::testing::Test {
 protected:
  std::unique_ptr<Store> client() { return connect_store(server_.endpoint(), token_, soon()); }

  std::future<rendezvous::Survivors> find(int rank, int size, Deadline deadline = soon()) {
    return std::async(std::launch::async, [this, rank, size, deadline] {
      return find_survivors(*client(), rank, size, "left", deadline);
    });
  }

  static std::string refusal(std::future<rendezvous::Survivors> result, ErrorCode code) {
    return text_of(code, [&] { result.get(); });
  }

  const net::Token token_ = net::Token::generate();
  StoreServer server_{{"127.0.0.1", 0}, token_};
};

TEST_F(Survivors, AllButOneFindEachOther) {
  std::vector<std::future<rendezvous::Survivors>> all;
  for (const int rank : {3, 0, 2}) all.push_back(find(rank, 4));
  note_end(*client(), "left", 1, soon());
  for (auto& result : all) {
    const auto left = result.get();
    EXPECT_THAT(left.ranks, ElementsAre(0, 2, 3));
    EXPECT_EQ(left.lost, 1);
  }
}

TEST_F(Survivors, OfTwoOneIsLeft) {
  const auto left = find(1, 2).get();
  EXPECT_THAT(left.ranks, ElementsAre(1));
  EXPECT_EQ(left.lost, 0);
}

TEST_F(Survivors, WhoComesAfterTheyHaveGoneOnIsTold) {
  find(1, 2).get();
  EXPECT_THAT(refusal(find(0, 2), ErrorCode::PeerLost), HasSubstr("gone on without it"));
}

TEST_F(Survivors, NobodyWaitsForTwoThatHaveEnded) {
  note_end(*client(), "left", 0, soon());
  auto waiting = find(1, 4), too = find(3, 4);
  note_end(*client(), "left", 2, soon());
  EXPECT_THAT(refusal(std::move(waiting), ErrorCode::PeerLost), HasSubstr("ranks 0 and 2"));
  EXPECT_THAT(refusal(std::move(too), ErrorCode::PeerLost), HasSubstr("ranks 0 and 2"));
}

TEST_F(Survivors, WhoIsMissingIsNamed) {
  auto waiting = find(1, 3, Deadline::after(std::chrono::milliseconds(200)));
  EXPECT_THAT(refusal(std::move(waiting), ErrorCode::Timeout), HasSubstr("0 and 2"));
}

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
