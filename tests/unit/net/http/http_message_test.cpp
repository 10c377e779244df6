#include "bimetal/net/http/http_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::net {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(HttpMessage, ReadsARequest) {
  const auto request = parse_request(
      "GET /metrics?x=1 HTTP/1.1\r\nHost: a:1\r\naUTHORIZATION:  bearer  s3cret \r\nX:\r\n\r\n");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/metrics");
  EXPECT_EQ(request->bearer, "s3cret");
}

TEST(HttpMessage, OtherCredentialsAreNoBearer) {
  const auto bearer = [](const std::string& line) {
    return parse_request("GET / HTTP/1.0\r\n" + line + "\r\n\r\n").value().bearer;
  };
  EXPECT_EQ(bearer("Authorization: Basic abc"), std::nullopt);
  EXPECT_EQ(bearer("Authorization: Bearer"), "");
  EXPECT_EQ(bearer("X-Authorization: Bearer abc"), std::nullopt);
}

TEST(HttpMessage, RefusesWhatIsNoRequest) {
  for (const char* head :
       {"", "\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n", "GET metrics HTTP/1.1\r\n\r\n", "GET / HTTP/1.1 \r\n\r\n",
        "G\x01T / HTTP/1.1\r\n\r\n", "GET /\x7f HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n",
        "GET / HTTP/1.1\r\nA : x\r\n\r\n", "\x16\x03\x01\r\n\r\n"}) {
    EXPECT_FALSE(parse_request(head)) << head;
  }
}

TEST(HttpMessage, KnowsWhoMakesABrowserAsk) {
  const auto local = [](const std::string& lines) {
    return is_local(parse_request("GET / HTTP/1.1\r\n" + lines + "\r\n").value());
  };
  for (const char* lines :
       {"", "Host: localhost\r\n", "Host: LocalHost:8080\r\n", "Host: 127.0.0.1:8080\r\n",
        "Host: [::1]:8080\r\n", "Host: [::1]\r\nOrigin: http://localhost:3000\r\n",
        "Origin: https://127.0.0.9\r\n"}) {
    EXPECT_TRUE(local(lines)) << lines;
  }
  for (const char* lines :
       {"Host: evil.example\r\n", "Host: localhost.evil.example:8080\r\n", "Host:\r\n",
        "Host: 127.0.0.1.evil.example\r\n", "Host: localhost\r\nOrigin: http://evil.example\r\n",
        "Origin: null\r\n", "Origin: http://[::2]:80\r\n", "Origin: localhost@evil.example\r\n"}) {
    EXPECT_FALSE(local(lines)) << lines;
  }
  EXPECT_FALSE(parse_request("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n"));
}

TEST(HttpMessage, KnowsWhoWaitsBeforeTheBody) {
  EXPECT_TRUE(parse_request("POST / HTTP/1.1\r\nexpect: 100-Continue\r\n\r\n")->awaits_continue);
  EXPECT_FALSE(parse_request("POST / HTTP/1.0\r\nExpect: 100-continue\r\n\r\n")->awaits_continue);
  EXPECT_FALSE(parse_request("POST / HTTP/1.1\r\n\r\n")->awaits_continue);
}

TEST(HttpMessage, AnswersSayHowLongTheyAre) {
  const HttpAnswer answer{200, "text/plain", "four"};
  EXPECT_THAT(encode_answer(answer), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(encode_answer(answer), HasSubstr("\r\nContent-Length: 4\r\n"));
  EXPECT_THAT(encode_answer(answer), HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(encode_answer(answer), EndsWith("\r\n\r\nfour"));
  EXPECT_THAT(encode_answer(answer, false), EndsWith("\r\n\r\n"));
  EXPECT_THAT(encode_answer(answer, false), HasSubstr("\r\nContent-Length: 4\r\n"));
  EXPECT_THAT(encode_answer({401}), HasSubstr("\r\nWWW-Authenticate: Bearer"));
}

TEST(HttpMessage, ReadsAnAnswersHead) {
  const auto answer =
      parse_answer("HTTP/1.1 401 Unauthorized\r\nX: y\r\ncontent-length: 7\r\n\r\n");
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 401);
  EXPECT_EQ(answer->length, 7u);
  EXPECT_EQ(parse_answer("HTTP/1.0 200\r\n\r\n").value().length, std::nullopt);
  EXPECT_EQ(parse_answer(encode_answer({.body = "four"})).value().length, 4u);
  for (const char* head :
       {"", "SSH-2.0-x\r\n", "HTTP/1.1 20\r\n", "HTTP/1.1 2000 OK\r\n", "HTTP/1.1 -20 OK\r\n",
        "HTTP/1.1 2x0 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n"}) {
    EXPECT_FALSE(parse_answer(head)) << head;
  }
}

}  // namespace
}  // namespace bimetal::net
