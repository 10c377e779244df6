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
