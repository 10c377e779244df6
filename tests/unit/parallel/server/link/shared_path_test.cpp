// Rings in memory that a worker and a server of one host share.

#include "bimetal/parallel/server/link/shared_path.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/server/link/questions.h"
#include "support/errors.h"

namespace bimetal::parallel::server {
namespace {

constexpr std::size_t kRing = 4096;

std::vector<std::byte> numbers(std::size_t count, unsigned from) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(from + i);
  return bytes;
}

class Rings : public ::testing::Test {
 protected:
  std::unique_ptr<SharedPath> worker_ = SharedPath::make(kRing);
  std::unique_ptr<SharedPath> server_ = SharedPath::open(worker_->offer());
};

TEST_F(Rings, CarryWhateverFitsBothWays) {
  std::mt19937 random(7);
  for (const bool to_server : {true, false}) {
    auto& sender = to_server ? worker_->out() : server_->out();
    auto& receiver = to_server ? server_->in() : worker_->in();
    std::deque<std::vector<std::byte>> on_their_way;
    std::size_t refused = 0, received = 0;
    for (unsigned i = 0; received < 5000; ++i) {
      const auto payload = numbers(random() % (kRing / 4 + 1), i);
      ASSERT_TRUE(sender.fits(payload.size()));
      if (random() % 4 != 0 || on_their_way.empty()) {
        if (sender.put(payload)) {
          on_their_way.push_back(payload);
          continue;
        }
        ++refused;
        ASSERT_FALSE(on_their_way.empty()) << "no room where nothing lies";
      }
      std::vector<std::byte> taken(on_their_way.front().size());
      receiver.take(taken);
      ASSERT_EQ(taken, on_their_way.front()) << received;
      on_their_way.pop_front();
      ++received;
      if (const auto news = receiver.news()) sender.on_taken(*news);
    }
    EXPECT_GT(refused, 0u);
  }
}

TEST_F(Rings, AreNotOverwrittenBeforeTheyWereRead) {
  const auto quarter = numbers(kRing / 4, 0);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(worker_->out().put(quarter));
  EXPECT_FALSE(worker_->out().put(quarter));
  std::vector<std::byte> taken(quarter.size());
  server_->in().take(taken);
  EXPECT_FALSE(worker_->out().put(quarter)) << "nobody has told of it yet";
  worker_->out().on_taken(*server_->in().news());
  EXPECT_TRUE(worker_->out().put(quarter));
}

TEST_F(Rings, DoNotBelieveWhatCannotBe) {
  EXPECT_TRUE(worker_->out().put(numbers(100, 0)));
  EXPECT_THROW(worker_->out().on_taken(101), Error);
  worker_->out().on_taken(100);
  EXPECT_THROW(worker_->out().on_taken(99), Error) << "less than before";
  EXPECT_FALSE(worker_->out().fits(kRing / 4 + 1));
  std::vector<std::byte> whole(kRing);
  EXPECT_THROW(server_->in().take(whole), Error);
}

TEST_F(Rings, AreOpenedByThoseWhoShareThemAlone) {
  auto offer = worker_->offer();
  for (std::size_t size = 0; size < offer.size(); ++size) {
    EXPECT_THROW(SharedPath::open(std::span(offer).first(size)), Error) << size;
  }
  for (std::size_t i = 0; i < offer.size(); ++i) {
    auto wrong = offer;
    wrong[i] ^= std::byte{0x55};
    EXPECT_THROW(SharedPath::open(wrong), Error) << i;
  }
  ::setenv("BIMETAL_ISLAND", "another host", 1);
  EXPECT_THROW(SharedPath::open(offer), Error);
  ::unsetenv("BIMETAL_ISLAND");
  EXPECT_NO_THROW(SharedPath::open(offer));
  worker_->opened();
  EXPECT_THROW(SharedPath::open(offer), Error) << "nobody finds it any more";
}

using std::chrono::seconds;

Credentials credentials(const char* token, net::Encryption encryption = net::Encryption::off) {
  return {net::Token::from_text(token), encryption, "job"};
}

TEST(LinkRate, IsMeasuredBothWaysPlainAndEncrypted) {
  for (const auto encryption : {net::Encryption::off, net::Encryption::on}) {
    const auto own = credentials("the token of this test", encryption);
    const RateServer server({"127.0.0.1", 0}, own);
    for (int again = 0; again < 2; ++again) {
      const auto rate =
          measure_rate(server.endpoint(), "server 0", own, Deadline::after(seconds(20)));
      EXPECT_GT(rate.up, 0);
      EXPECT_GT(rate.down, 0);
    }
  }
}

TEST(LinkRate, StrangersMeasureNothing) {
  const RateServer server({"127.0.0.1", 0}, credentials("the token of this test"));
  expect_error(ErrorCode::Unauthorized, {}, [&] {
    measure_rate(server.endpoint(), "server 0", credentials("another token, of a stranger"),
                 Deadline::after(seconds(20)));
  });
}

TEST(LinkRate, EndsAtTheDeadline) {
  const auto own = credentials("the token of this test");
  auto server = std::make_unique<RateServer>(net::Endpoint{"127.0.0.1", 0}, own);
  const auto at = server->endpoint();
  server.reset();
  expect_error(ErrorCode::Timeout, {"server 0"}, [&] {
    measure_rate(at, "server 0", own, Deadline::after(std::chrono::milliseconds(200)));
  });
}

}  // namespace
}  // namespace bimetal::parallel::server
