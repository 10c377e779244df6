#include "bimetal/net/endpoint.h"

#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::net {
namespace {

TEST(Endpoint, ReadsNamesAddressesAndBrackets) {
  EXPECT_EQ(parse_endpoint("10.0.0.2:29500"), (Endpoint{"10.0.0.2", 29500}));
  EXPECT_EQ(parse_endpoint("mac.local:1"), (Endpoint{"mac.local", 1}));
  EXPECT_EQ(parse_endpoint("[fe80::1%en0]:65535"), (Endpoint{"fe80::1%en0", 65535}));
  EXPECT_EQ(parse_endpoint("localhost:0"), (Endpoint{"localhost", 0}));
}

TEST(Endpoint, WritesWhatItReads) {
  for (const char* text : {"10.0.0.2:29500", "mac.local:1", "[::1]:65535"}) {
    EXPECT_EQ(to_string(parse_endpoint(text)), text);
  }
}

TEST(Endpoint, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "port is missing"},           {"host", "port is missing"},
      {"host:", "port is missing"},      {":80", "host is missing"},
      {"host:http", "must be a number"}, {"host:65536", "0 to 65535"},
      {"host:-1", "must be a number"},   {"host:80 ", "must be a number"},
      {"::1:80", "need brackets"},       {"[::1", "not closed"},
      {"[::1]80", "must follow"},        {"my host:80", "no host name has"},
  };
  for (const auto& [text, message] : cases) {
    expect_error(ErrorCode::InvalidArgument, {message}, [&text = text] { parse_endpoint(text); });
  }
}

TEST(Endpoint, KnowsLoopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.2", "localhost.example.org", "128.0.0.1", ""}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
}

}  // namespace
}  // namespace bimetal::net
