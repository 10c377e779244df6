#include "bimetal/parallel/server/link/link_rate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::parallel::server {
namespace {

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
