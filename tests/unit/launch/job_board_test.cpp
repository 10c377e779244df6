#include "bimetal/launch/job_board.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::launch {
namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

class JobBoardTest : public ::testing::Test {
 protected:
  JobBoardTest()
      : server_({"127.0.0.1", 0}, {}),
        host_store_(rendezvous::connect_store(server_.endpoint(), {}, soon())),
        guest_store_(rendezvous::connect_store(server_.endpoint(), {}, soon())),
        host_(host_store_),
        guest_(guest_store_) {}

  rendezvous::StoreServer server_;
  JobStore host_store_, guest_store_;
  JobBoard host_, guest_;
};

TEST_F(JobBoardTest, TheHostHasTheFirstRanks) {
  host_.offer({"1.2.3", "[train]\nsteps = 3\n", 4, 0}, 2);
  const auto offer = guest_.read_offer(soon());
  EXPECT_EQ(offer.version, "1.2.3");
  EXPECT_EQ(offer.request, "[train]\nsteps = 3\n");
  EXPECT_EQ(offer.world_size, 4);
  EXPECT_EQ(guest_.claim(1, 4), 2);
  EXPECT_EQ(guest_.claim(1, 4), 3);
  EXPECT_EQ(host_.claimed(), 4);
}

TEST_F(JobBoardTest, AFullJobTakesNobody) {
  host_.offer({"1", "", 3, 0}, 2);
  expect_error(
      ErrorCode::InvalidArgument,
      {"2 of the job's 3 workers have joined", "waits for 1 more", "offer fewer", "--world-size 4"},
      [&] { guest_.claim(2, 3); });
  EXPECT_EQ(guest_.claim(1, 3), 2) << "what could not be claimed must be given back";
  expect_error(ErrorCode::InvalidArgument, {"waits for nobody", "once it trains"},
               [&] { guest_.claim(1, 3); });
  const auto machines = guest_.machines(3);
  ASSERT_EQ(machines.size(), 2);
  EXPECT_EQ(machines[0].count, 2);
  EXPECT_EQ(machines[1].first_rank, 2);
  EXPECT_EQ(machines[1].count, 1);
}

TEST_F(JobBoardTest, ServersThatTheHostLacksAreTakenOnce) {
  host_.offer({"1", "", 1, 2}, 1);
  const auto offer = guest_.read_offer(soon());
  EXPECT_EQ(guest_.claim_server(offer, 4), 2);
  EXPECT_EQ(guest_.claim_server(offer, 4), 3);
  for (int again = 0; again < 2; ++again) {
    expect_error(ErrorCode::InvalidArgument, {"all of its 4 parameter servers"},
                 [&] { guest_.claim_server(offer, 4); });
  }
  EXPECT_FALSE(host_.everyone_left());
  host_.leave();
  for (int guest = 0; guest < 2; ++guest) guest_.leave();
  EXPECT_TRUE(host_.everyone_left());
}

TEST_F(JobBoardTest, BeginsWhenTheHostSaysSo) {
  EXPECT_FALSE(guest_.started());
  host_.start();
  EXPECT_TRUE(guest_.started());
}

TEST_F(JobBoardTest, TheFirstFailureIsTheOneToldEverywhere) {
  EXPECT_FALSE(host_.failure());
  guest_.fail(Error(ErrorCode::OutOfMemory, "rank 1 ran out of memory"), "pc");
  host_.fail(Error(ErrorCode::Timeout, "rank 0 waited"), "mac");
  const auto cause = host_.failure();
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->code(), ErrorCode::OutOfMemory);
  EXPECT_STREQ(cause->what(), "on pc: rank 1 ran out of memory");
}

TEST_F(JobBoardTest, OnlyFromAMachineInTroubleACauseMayStillCome) {
  EXPECT_FALSE(host_.in_trouble());
  host_.note_trouble();
  EXPECT_TRUE(guest_.in_trouble());
  host_.know_no_cause();
  EXPECT_FALSE(host_.cause_may_come()) << "of its own it knows";
  guest_.note_trouble();
  EXPECT_TRUE(host_.cause_may_come());
  guest_.know_no_cause();
  EXPECT_FALSE(host_.cause_may_come());
}

TEST_F(JobBoardTest, AWithdrawalNamesTheMachine) {
  EXPECT_FALSE(host_.withdrawn());
  guest_.withdraw("pc");
  EXPECT_EQ(host_.withdrawn(), "pc");
}

TEST_F(JobBoardTest, KnowsWhenEveryoneHasLeft) {
  host_.offer({"1", "", 2, 0}, 1);
  guest_.claim(1, 2);
  host_.leave();
  EXPECT_FALSE(host_.everyone_left());
  guest_.leave();
  EXPECT_TRUE(host_.everyone_left());
}

using std::chrono::seconds;

constexpr seconds kGenerous{120};

Deadline long_enough() {
  return Deadline::after(kGenerous);
}

/// A process that serves a store, to be stopped as a machine is cut off: its connections stay, and
/// nothing answers.
class StoreProcess {
 public:
  StoreProcess() {
    int port_pipe[2];
    if (::pipe(port_pipe) != 0) throw system_error("pipe", errno);
    child_ = ::fork();
    if (child_ == 0) {
      const rendezvous::StoreServer server({"127.0.0.1", 0}, {});
      const auto port = server.endpoint().port;
      if (::write(port_pipe[1], &port, sizeof(port)) != sizeof(port)) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(port_pipe[1]);
    const auto got = ::read(port_pipe[0], &port_, sizeof(port_));
    ::close(port_pipe[0]);
    if (got != sizeof(port_)) throw Error(ErrorCode::Internal, "the store's process has failed");
  }
  ~StoreProcess() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;

  std::unique_ptr<rendezvous::Store> connect() const {
    return rendezvous::connect_store({"127.0.0.1", port_}, {}, long_enough());
  }
  /// Returns once it has stopped: until then it may answer.
  void stop() const {
    ::kill(child_, SIGSTOP);
    ::waitpid(child_, nullptr, WUNTRACED);
  }

 private:
  pid_t child_ = -1;
  std::uint16_t port_ = 0;
};

ErrorCode code_of_question(JobStore& store, Deadline deadline) {
  return code_of([&] { store.try_get("key", deadline); });
}

TEST(JobStore, AfterAFailureNobodyWaitsLongForASilentMachine) {
  const StoreProcess process;
  JobStore store(process.connect());
  store.set("key", "value", long_enough());
  store.hurry();
  EXPECT_EQ(store.try_get("key", long_enough()), "value") << "one that answers is still heard";
  process.stop();
  const auto deadline = long_enough();
  EXPECT_EQ(code_of_question(store, deadline), ErrorCode::Timeout);
  EXPECT_EQ(code_of_question(store, deadline), ErrorCode::Timeout) << "one may be a hitch";
  for (int more = 0; more < 100; ++more) {
    EXPECT_EQ(code_of_question(store, deadline), ErrorCode::PeerLost);
  }
  EXPECT_GT(deadline.remaining(), kGenerous / 2);
}

}  // namespace
}  // namespace bimetal::launch
