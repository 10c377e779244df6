#include "bimetal/rendezvous/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "bimetal/base/error.h"
#include "unit/rendezvous/soon.h"

namespace bimetal::rendezvous {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  std::unique_ptr<net::Mesh> mesh;
  std::optional<Error> error;
};

/// A store and processes that meet at it, each on a thread of its own.
class Bootstrap : public ::testing::Test {
 protected:
  std::future<Outcome> join(int rank, int size, BootstrapOptions options = {},
                            Deadline deadline = soon()) {
    if (options.host_name.empty()) options.host_name = "host" + std::to_string(rank);
    if (options.token.empty()) options.token = token_;
    return std::async(std::launch::async, [=, this]() -> Outcome {
      try {
        const auto store = connect_store(server_.endpoint(), token_, deadline);
        return {connect_mesh(*store, rank, size, options, deadline), std::nullopt};
      } catch (const Error& error) {
        return {nullptr, error};
      }
    });
  }

  static BootstrapOptions named(const std::string& host) {
    BootstrapOptions options;
    options.host_name = host;
    return options;
  }

  /// As the launcher of a rank that has died.
  void tell_of_the_end_of(int rank) {
    const auto store = connect_store(server_.endpoint(), token_, soon());
    note_failure(*store, fault_key(),
                 Error(ErrorCode::PeerLost, "rank " + std::to_string(rank) + " was killed", rank),
                 soon());
  }

  /// Ended by what tell_of_the_end_of() has told, with most of the time to the deadline left.
  static void expect_ended_by(int rank, std::future<Outcome>& waiting, Deadline deadline) {
    const auto allowed = deadline.remaining();
    const Outcome outcome = waiting.get();
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::PeerLost) << outcome.error->what();
    EXPECT_EQ(outcome.error->rank(), rank);
    EXPECT_THAT(outcome.error->what(), HasSubstr("rank " + std::to_string(rank) + " was killed"));
    EXPECT_GT(deadline.remaining(), allowed / 2);
  }

  const net::Token token_ = net::Token::generate();
  StoreServer server_{{"127.0.0.1", 0}, token_};
};

TEST_F(Bootstrap, EpochsAndJobsDoNotMeet) {
  BootstrapOptions next;
  next.prefix = "mesh/1";
  auto zero = join(0, 2);
  auto zero_of_next = join(0, 2, next);
  auto one_of_next = join(1, 2, next);
  auto one = join(1, 2);
  for (auto* rank : {&zero, &one, &zero_of_next, &one_of_next}) EXPECT_TRUE(rank->get().mesh);
}

TEST_F(Bootstrap, MissingRanksAreNamedAndThoseWhoJoined) {
  // Long enough for rank 3 to join a busy machine under a sanitizer.
  const Deadline deadline = Deadline::after(3s);
  auto zero = join(0, 5, {}, deadline);
  auto three = join(3, 5, {}, deadline);
  for (auto* rank : {&zero, &three}) {
    const Outcome outcome = rank->get();
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::Timeout);
    EXPECT_THAT(outcome.error->what(),
                AllOf(HasSubstr("did not join in time: 1, 2, 4;"),
                      HasSubstr("joined: 0 on host0 ("), HasSubstr("3 on host3 (")));
  }
}

TEST_F(Bootstrap, NobodyWaitsForARankThatIsKnownToHaveDied) {
  const Deadline deadline = soon();
  auto zero = join(0, 3, {}, deadline);
  auto two = join(2, 3, {}, deadline);
  std::this_thread::sleep_for(100ms);
  tell_of_the_end_of(1);
  for (auto* rank : {&zero, &two}) expect_ended_by(1, *rank, deadline);
}

TEST_F(Bootstrap, NobodyCallsARankThatHasDiedSinceItToldItsAddress) {
  // Gives up waiting for the others after a while, and leaves an address where nobody is any more.
  EXPECT_TRUE(join(0, 3, {}, Deadline::after(1s)).get().error);
  const Deadline deadline = soon();
  auto one = join(1, 3, {}, deadline);
  auto two = join(2, 3, {}, deadline);
  std::this_thread::sleep_for(1s);  // they have all addresses by now, and call rank 0
  tell_of_the_end_of(0);
  for (auto* rank : {&one, &two}) expect_ended_by(0, *rank, deadline);
}

TEST_F(Bootstrap, DisagreementAboutTheWorldSizeIsNamedToAll) {
  auto zero = join(0, 3);
  auto one = join(1, 2);
  for (auto* rank : {&zero, &one}) {
    const Outcome outcome = rank->get();
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(outcome.error->what(),
                AllOf(HasSubstr("world size"), HasSubstr("host0"), HasSubstr("host1")));
  }
}

TEST_F(Bootstrap, AnotherTokenOfOneRankIsToldToAll) {
  BootstrapOptions stranger;
  stranger.token = net::Token::generate();
  auto zero = join(0, 3);
  auto one = join(1, 3, stranger);
  auto two = join(2, 3);
  for (auto* rank : {&zero, &one, &two}) {
    const Outcome outcome = rank->get();
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::Unauthorized) << outcome.error->what();
    EXPECT_THAT(outcome.error->what(), HasSubstr("token"));
  }
}

TEST_F(Bootstrap, RankOnLoopbackAmongOthersOnTheNetworkIsNamed) {
  BootstrapOptions on_all;
  on_all.listen_host = "0.0.0.0";
  auto zero = join(0, 2);
  auto one = join(1, 2, on_all);
  for (auto* rank : {&zero, &one}) {
    const Outcome outcome = rank->get();
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(outcome.error->what(), HasSubstr("rank 0 on host0"));
    EXPECT_THAT(outcome.error->what(), HasSubstr("listens on loopback (127.0.0.1)"));
  }
}

TEST_F(Bootstrap, RefusesImpossibleRanks) {
  for (const auto& [rank, size] : {std::pair(2, 2), std::pair(-1, 2), std::pair(0, 0)}) {
    const Outcome outcome = join(rank, size).get();
    ASSERT_TRUE(outcome.error);
    EXPECT_EQ(outcome.error->code(), ErrorCode::InvalidArgument);
  }
}

}  // namespace
}  // namespace bimetal::rendezvous
