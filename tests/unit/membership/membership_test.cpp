// Members as threads, each with a door and connections of its own: the members that are left or
// come agree on the next epoch, and on no more than one.

#include "bimetal/membership/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/rendezvous/store.h"
#include "support/thread_ranks.h"

namespace bimetal::membership {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using namespace std::chrono_literals;

Options options_of(int number) {
  Options options;
  options.host = "host" + std::to_string(number);
  options.worker = "cpu";
  options.job = "a job";
  options.patience = 2s;
  options.timeout = 5s;
  options.silence = 500ms;
  return options;
}

int sum_of_ones(comm::Group group) {
  std::array<int, 1> one = {1};
  group.all_reduce(comm::buffer(std::span(one))).wait();
  return one[0];
}

/// The members of a first epoch, whose group has ended.
class Members {
 public:
  explicit Members(
      int count, const std::function<void(Options&)>& change = [](Options&) {}) {
    for (int i = 0; i < count; ++i) {
      auto options = options_of(i);
      change(options);
      all_.push_back(std::make_unique<Membership>(options));
    }
    testing::run_ranks(count, [&](int rank, comm::Group group) {
      all_[static_cast<std::size_t>(rank)]->found(std::move(group));
    });
  }

  Membership& operator[](int i) { return *all_[static_cast<std::size_t>(i)]; }
  /// Killed: nothing of it answers any more.
  void lose(int i) { all_[static_cast<std::size_t>(i)].reset(); }

  std::future<Change> next(int i, std::vector<int> leaving = {}, std::optional<Error> loss = {}) {
    return std::async(std::launch::async,
                      [this, i, leaving, loss] { return (*this)[i].next(loss, leaving); });
  }

 private:
  std::vector<std::unique_ptr<Membership>> all_;
};

std::future<comm::Group> join(Membership& newcomer, const Membership& member) {
  return std::async(std::launch::async,
                    [&newcomer, door = member.door()] { return newcomer.join({door}); });
}

template <typename Result>
std::string failure_of(std::future<Result> result) {
  try {
    result.get();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Membership, WhoIsLeftMakesTheNextEpochWhoeverIsLost) {
  for (const int lost : {0, 2}) {
    Members members(3);
    members.lose(lost);
    const int first = lost == 0 ? 1 : 0, second = lost == 2 ? 1 : 2;
    auto one = members.next(first), other = members.next(second);
    auto change = one.get(), same = other.get();
    auto sum = std::async(std::launch::async, [&] { return sum_of_ones(same.group); });
    EXPECT_EQ(sum_of_ones(change.group), 2);
    EXPECT_EQ(sum.get(), 2);
    EXPECT_EQ(change.group.rank(), 0);
    ASSERT_THAT(change.lost, SizeIs(1));
    EXPECT_EQ(change.lost[0].host, "host" + std::to_string(lost));
    EXPECT_THAT(change.came, IsEmpty());
    EXPECT_EQ(members[first].roll(), members[second].roll());
    EXPECT_EQ(members[first].roll().epoch, 1);
  }
}

TEST(Membership, TheLastOneGoesOnAlone) {
  Members members(3);
  members.lose(0);
  members.lose(1);
  EXPECT_EQ(members.next(2).get().group.size(), 1);
}

TEST(Membership, WhoLeavesIsNotWaitedFor) {
  Members members(3);
  auto one = members.next(1, {0}), other = members.next(2, {0});
  const auto change = one.get();
  other.get();
  EXPECT_EQ(change.group.size(), 2);
  EXPECT_THAT(change.lost, IsEmpty());
  ASSERT_THAT(change.left, SizeIs(1));
  EXPECT_EQ(change.left[0].host, "host0");
}

void wait_for_visitor(Membership& member) {
  while (!member.somebody_waits()) std::this_thread::sleep_for(10ms);
}

TEST(Membership, NewcomersWaitAtTheDoorUntilTheEpochEnds) {
  Members members(2);
  Membership newcomer(options_of(2));
  auto joined = join(newcomer, members[1]);  // any member's door
  wait_for_visitor(members[0]);
  auto one = members.next(0), other = members.next(1);
  const auto group = joined.get();
  const auto change = one.get();
  other.get();
  EXPECT_EQ(group.rank(), 2);
  EXPECT_EQ(group.size(), 3);
  ASSERT_THAT(change.came, SizeIs(1));
  EXPECT_EQ(change.came[0].host, "host2");
}

TEST(Membership, NewcomersAreRefusedForAnotherJob) {
  Members members(1);
  auto options = options_of(1);
  options.job = "another job";
  Membership newcomer(options);
  auto joined = join(newcomer, members[0]);
  while (joined.wait_for(10ms) != std::future_status::ready) {
    EXPECT_FALSE(members[0].somebody_waits());
  }
  try {
    joined.get();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("another job"));
  }
}

TEST(Membership, NewcomersThatNobodyElseCouldReachAreRefused) {
  std::string own;
  try {
    own = net::address_towards({"192.0.2.1", 9});  // to which nothing is sent
  } catch (const Error&) {
    GTEST_SKIP() << "this machine has no address beyond loopback";
  }
  if (net::is_loopback(own)) GTEST_SKIP() << "this machine has no address beyond loopback";
  const auto token = net::Token::generate();
  Members members(1, [&](Options& options) {
    options.listen = own;
    options.token = token;
  });
  auto options = options_of(1);
  options.token = token;
  Membership newcomer(options);
  auto joined = join(newcomer, members[0]);
  while (joined.wait_for(10ms) != std::future_status::ready) {
    EXPECT_FALSE(members[0].somebody_waits());
  }
  EXPECT_THAT(failure_of(std::move(joined)), HasSubstr("listens on loopback"));
}

TEST(Membership, AFullJobLeavesThemWaiting) {
  Members members(2, [](Options& options) { options.most = 2; });
  Membership newcomer(options_of(2));
  auto joined = join(newcomer, members[0]);
  std::this_thread::sleep_for(400ms);
  EXPECT_FALSE(members[0].somebody_waits());
  members.lose(1);
  EXPECT_EQ(members.next(0).get().group.size(), 2);  // there is room now
  EXPECT_EQ(joined.get().rank(), 1);
}

TEST(Membership, NewcomersHearThatTheJobIsDone) {
  Members members(2);
  Membership newcomer(options_of(2));
  auto joined = join(newcomer, members[1]);
  wait_for_visitor(members[0]);
  members[0].finish();
  members.lose(0);
  EXPECT_THAT(failure_of(std::move(joined)), HasSubstr("the job is done"));
  EXPECT_EQ(members.next(1).get().group.size(), 1);  // it has missed the last step
}

TEST(Membership, WhoComesTooLateReadsItAtTheBoard) {
  rendezvous::StoreServer board({"127.0.0.1", 0}, {});
  const auto with_board = [&](Options& options) { options.board = board.endpoint(); };
  Members members(2, with_board);
  members.lose(1);
  EXPECT_EQ(members.next(0).get().group.size(), 1);
  members[0].finish();
  members.lose(0);
  Membership late(options_of(2));
  auto joined = std::async(std::launch::async, [&] { return late.join({board.endpoint()}); });
  EXPECT_THAT(failure_of(std::move(joined)), HasSubstr("the job is done"));
}

TEST(Membership, WhoHasBeenLeftBehindComesBackAsANewcomer) {
  Members members(3, [](Options& options) { options.timeout = 300ms; });
  // Member 0 is there and does not come: it is stuck.
  const Error silent(ErrorCode::PeerLost, "rank 0 is silent", 0);
  auto one = members.next(1, {}, silent), other = members.next(2, {}, silent);
  const auto first = one.get();
  EXPECT_EQ(first.group.size(), 2);
  EXPECT_EQ(other.get().lost.size(), 1);
  auto back = members.next(0);  // it wakes up
  wait_for_visitor(members[1]);
  auto again = members.next(1), too = members.next(2);
  EXPECT_EQ(again.get().came.size(), 1);
  EXPECT_EQ(too.get().group.size(), 3);
  EXPECT_EQ(back.get().group.rank(), 2);
}

TEST(Membership, OfTwoHalvesTheOneWithTheKeeperGoesOn) {
  const auto kept = [](Options& options) {
    options.keeper = "host1";
    options.patience = options.timeout = 200ms;
  };
  Members members(2, kept), others(2, kept);
  members.lose(0);
  others.lose(1);
  EXPECT_EQ(members.next(1).get().group.size(), 1);
  EXPECT_THAT(failure_of(others.next(0)), HasSubstr("elastic.keeper"));
}

TEST(Membership, FewerThanTheLeastAreAnErrorThatSaysWhoIsMissing) {
  Members members(3, [](Options& options) {
    options.least = 2;
    options.patience = options.timeout = 200ms;
  });
  members.lose(0);
  members.lose(1);
  EXPECT_THAT(failure_of(members.next(2)),
              ::testing::AllOf(HasSubstr("min_workers asks for 2"), HasSubstr("host0")));
}

TEST(Membership, WhoWaitsWithALeaderThatGivesUpDoesNotTakeItForLost) {
  Members members(3, [](Options& options) {
    options.least = 3;
    // The leader's time is over first.
    options.patience = options.host == "host0" ? 300ms : 20s;
  });
  members.lose(2);
  auto leader = members.next(0), other = members.next(1);
  const auto shortage =
      ::testing::AllOf(HasSubstr("2 of 3 members are there"), HasSubstr("host2"),
                       ::testing::Not(HasSubstr("host0")), ::testing::Not(HasSubstr("host1")));
  EXPECT_THAT(failure_of(std::move(leader)), shortage);
  EXPECT_THAT(failure_of(std::move(other)), shortage);
}

TEST(Membership, AFailureOfOneIsToldToAll) {
  Members members(3);
  auto one = members.next(0), other = members.next(2);
  members[1].fail({ErrorCode::NotFinite, "the sums are off", 1});
  EXPECT_EQ(failure_of(std::move(one)), "the sums are off");
  EXPECT_EQ(failure_of(std::move(other)), "the sums are off");
}

TEST(Membership, TheFirstMembersFailureIsToldToo) {
  Members members(2);
  auto other = members.next(1);
  members[0].fail({ErrorCode::NotFinite, "the sums are off", 0});
  EXPECT_EQ(failure_of(std::move(other)), "the sums are off");
}

TEST(Membership, AKeeperThatIsNoMemberIsAnError) {
  auto options = options_of(0);
  options.keeper = "nowhere";
  Membership member(options);
  testing::run_ranks(
      1, [&](int, comm::Group group) { EXPECT_THROW(member.found(std::move(group)), Error); });
}

TEST(Roll, AnswersKeepTheirParts) {
  const Answer answer{Verdict::failed,
                      3,
                      {7, {{1, "a", "b", {"c", 4}}}, "a"},
                      "p",
                      Error(ErrorCode::PeerLost, "gone", 2)};
  const auto read = decode_answer(encode_answer(answer));
  EXPECT_EQ(read.roll, answer.roll);
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.prefix, "p");
  ASSERT_TRUE(read.error);
  EXPECT_EQ(read.error->rank(), 2);
  EXPECT_THROW(decode_answer("x"), Error);
}

}  // namespace
}  // namespace bimetal::membership
