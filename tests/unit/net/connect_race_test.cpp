// Servers with several addresses, on sockets of this machine: one that refuses, one that never
// answers (its queue is full, as behind a firewall that drops), one that is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <chrono>
#include <deque>
#include <future>
#include <thread>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/net/tcp/dial.h"
#include "bimetal/net/tcp/tcp_mesh.h"
#include "support/errors.h"

namespace bimetal::net {
namespace {

using asio::ip::tcp;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

Deadline soon() {
  return Deadline::after(30s);
}

/// Runs a coroutine to its end on the test's own thread.
template <typename Result>
Result run(asio::io_context& io, asio::awaitable<Result> coroutine) {
  std::optional<Result> result;
  std::exception_ptr failure;
  asio::co_spawn(
      io, [&]() -> asio::awaitable<void> { result.emplace(co_await std::move(coroutine)); },
      [&](std::exception_ptr error) {
        failure = std::move(error);
        io.stop();  // attempts may still be under way
      });
  io.restart();
  io.run();
  if (failure) std::rethrow_exception(failure);
  return std::move(*result);
}

class Racing : public ::testing::Test {
 protected:
  tcp::endpoint refusing() {
    tcp::acceptor gone(io_, {asio::ip::make_address("127.0.0.1"), 0});
    return gone.local_endpoint();  // closed on return
  }

  /// A listener with a full queue: further SYNs are dropped without a word (Linux).
  tcp::endpoint silent() {
    tcp::acceptor full(io_);
    full.open(tcp::v4());
    full.bind({asio::ip::make_address("127.0.0.1"), 0});
    full.listen(0);
    for (int i = 0; i < 4; ++i) {
      tcp::socket& socket = crowd_.emplace_back(io_);
      socket.async_connect(full.local_endpoint(), [](std::error_code) {});
    }
    queues_.push_back(std::move(full));
    return queues_.back().local_endpoint();
  }

  tcp::endpoint listening() {
    queues_.emplace_back(io_, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0));
    return queues_.back().local_endpoint();
  }

  std::optional<ConnectRace::Winner> first_of(ConnectRace& race, Deadline deadline = soon()) {
    return run(io_, race.next(deadline));
  }

  asio::io_context io_{1};
  std::vector<tcp::acceptor> queues_;
  std::deque<tcp::socket> crowd_;
};

TEST_F(Racing, ThePreferredAddressWinsWhereItWorks) {
  const auto preferred = listening();
  ConnectRace race(io_.get_executor(), {preferred, listening()});
  EXPECT_EQ(first_of(race).value().address, preferred);
}

TEST_F(Racing, ARefusalIsPassedByAtOnce) {
  const auto good = listening();
  ConnectRace race(io_.get_executor(), {refusing(), refusing(), good});
  EXPECT_EQ(first_of(race).value().address, good);
}

#ifdef __linux__
TEST_F(Racing, AnAddressThatNeverAnswersCostsAHeadStartOnly) {
  const auto good = listening();
  ConnectRace race(io_.get_executor(), {silent(), good});
  const Stopwatch clock;
  EXPECT_EQ(first_of(race).value().address, good);
  EXPECT_LT(clock.seconds(), 4.0) << "the silent address's own patience is 5 s";
}

TEST_F(Racing, TroublesNameEveryAddressAndWhatFailedThere) {
  const auto closed = refusing();
  const auto dropped = silent();
  ConnectRace race(io_.get_executor(), {closed, dropped});
  EXPECT_FALSE(first_of(race, Deadline::after(700ms)));
  EXPECT_THAT(race.troubles(),
              HasSubstr("127.0.0.1:" + std::to_string(closed.port()) + ": Connection refused"));
  EXPECT_THAT(race.troubles(),
              HasSubstr("127.0.0.1:" + std::to_string(dropped.port()) + ": no answer"));
}
#endif

TEST_F(Racing, AWinnerOfNoUseIsFollowedByTheNext) {
  const auto stranger = listening();
  const auto good = listening();
  ConnectRace race(io_.get_executor(), {stranger, good});
  ASSERT_EQ(first_of(race).value().address, stranger);
  race.reject(stranger, "not Bimetal");
  EXPECT_EQ(first_of(race).value().address, good);
  EXPECT_FALSE(first_of(race));
  EXPECT_THAT(race.troubles(), HasSubstr("not Bimetal"));
}

/// A server that is no Bimetal and says so in its own words to `visitors` who come.
class WebServer {
 public:
  explicit WebServer(int visitors) : thread_([this, visitors] { serve(visitors); }) {}
  ~WebServer() { thread_.join(); }
  Endpoint endpoint() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }

 private:
  void serve(int visitors) {
    for (int i = 0; i < visitors; ++i) {
      tcp::socket socket = acceptor_.accept();
      std::error_code gone;
      asio::write(socket, asio::buffer(std::string_view("HTTP/1.1 400 Bad Request\r\n\r\n")), gone);
      asio::read(socket, asio::buffer(scratch_), gone);
    }
  }

  asio::io_context io_;
  tcp::acceptor acceptor_{io_, {asio::ip::make_address("127.0.0.1"), 0}};
  std::array<char, 4096> scratch_;
  std::thread thread_;
};

TEST(Dial, AStrangersServerAtOneAddressDoesNotHideTheRealOne) {
  const WebServer stranger(1);
  TcpMeshBuilder zero(0, 2, {});
  TcpMeshBuilder one(1, 2, {});
  const std::vector<std::vector<Endpoint>> addresses{
      {stranger.endpoint(), zero.listening().front()}, one.listening()};
  auto other =
      std::async(std::launch::async, [&] { return std::move(zero).connect(addresses, soon()); });
  EXPECT_EQ(std::move(one).connect(addresses, soon())->size(), 2);
  other.get();
}

TEST(Dial, StrangersAtEveryAddressAreToldAtOnce) {
  const WebServer stranger(1);
  const WebServer another(1);
  TcpMeshBuilder one(1, 2, {});
  expect_error(ErrorCode::ProtocolMismatch, {"is not Bimetal"}, [&] {
    std::move(one).connect({{stranger.endpoint(), another.endpoint()}, {}}, soon());
  });
}

TEST(Dial, ALinkLocalAddressMustNameItsInterface) {
  asio::io_context io(1);
  for (const char* host : {"fe80::1", "fe80::1%nosuchinterface"}) {
    DialRequest request{{{host, 29500}}, "the store", {}, {}, soon(), {}};
    expect_error(ErrorCode::InvalidArgument, {"link-local"}, [&] { run(io, dial(request)); });
  }
}

}  // namespace
}  // namespace bimetal::net
