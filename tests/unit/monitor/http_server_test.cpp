#include "bimetal/net/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/monitor/monitor.h"
#include "bimetal/monitor/pages.h"
#include "support/errors.h"
#include "unit/net/raw_socket.h"

namespace bimetal::monitor {
namespace {

using namespace std::chrono_literals;
using net::testing::RawServer;
using net::testing::RawSocket;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const net::Endpoint kLoopback{"127.0.0.1", 0};

net::HttpAnswer page(std::string_view path) {
  if (path == "/throws") throw std::runtime_error("broken");
  if (path == "/large") return {200, "text/plain", std::string(1 << 20, 'x')};
  return path == "/hello" ? net::HttpAnswer{200, "text/plain", "hello\n"} : net::HttpAnswer{404};
}

std::string fetch(const net::Endpoint& server, std::string_view path,
                  const net::Token& token = {}) {
  return fetch_page(server, path, token, Deadline::after(30s));
}

ErrorCode error_of(const net::Endpoint& server, std::string_view path = "/hello",
                   const net::Token& token = {}, std::chrono::milliseconds patience = 30s) {
  try {
    fetch_page(server, path, token, Deadline::after(patience));
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(net::to_string(server)));
    return error.code();
  }
  return ErrorCode::Internal;
}

std::string answer_to(const net::Endpoint& server, std::string_view request) {
  auto socket = RawSocket::connect(server);
  socket.write(request);
  const auto bytes = socket.read(4096);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(HttpServer, ShowsItsPages) {
  const net::HttpServer server({.listen = kLoopback}, page);
  EXPECT_NE(server.endpoint().port, 0);
  EXPECT_EQ(fetch(server.endpoint(), "/hello"), "hello\n");
  EXPECT_EQ(fetch(server.endpoint(), "/hello?x"), "hello\n");
  EXPECT_EQ(fetch(server.endpoint(), "/large").size(), 1u << 20);
  EXPECT_EQ(error_of(server.endpoint(), "/other"), ErrorCode::ProtocolMismatch);
}

TEST(HttpServer, ClientsThatDifferAreToldWhy) {
  const net::HttpServer server({.listen = kLoopback}, page);
  const auto at = server.endpoint();
  EXPECT_THAT(answer_to(at, "GET /hello HTTP/1.0\r\n\r\n"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer_to(at, "GET /none HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(answer_to(at, "POST /hello HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"),
              StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(answer_to(at, "\x16\x03\x01 what is this\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer_to(at, "GET /throws HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(answer_to(at, "GET /" + std::string(100'000, 'x')), StartsWith("HTTP/1.1 431 "));
  const auto head = answer_to(at, "HEAD /hello HTTP/1.1\r\n\r\n");
  EXPECT_THAT(head, HasSubstr("Content-Length: 6\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
}

TEST(HttpServer, AsksForItsToken) {
  const auto token = net::Token::generate();
  const net::HttpServer server({.listen = kLoopback, .token = token}, page);
  EXPECT_EQ(fetch(server.endpoint(), "/hello", token), "hello\n");
  EXPECT_EQ(error_of(server.endpoint(), "/hello"), ErrorCode::Unauthorized);
  EXPECT_EQ(error_of(server.endpoint(), "/other"), ErrorCode::Unauthorized);  // tells no names
  for (const std::string& wrong : {std::string("x"), std::string(token.text()) + "0",
                                   std::string(token.text().substr(1)), std::string(64, '0')}) {
    EXPECT_EQ(error_of(server.endpoint(), "/hello", net::Token::from_text(wrong)),
              ErrorCode::Unauthorized);
  }
}

TEST(HttpServer, NothingListensBeyondLoopbackWithoutAToken) {
  expect_error(ErrorCode::Unauthorized, {}, [&] {
    const net::HttpServerOptions options{.listen = {"0.0.0.0", 0}};
    net::HttpServer server(options, page);
  });
}

TEST(HttpServer, SlowClientsHoldUpNobodyAndAreHungUpOn) {
  const net::HttpServer server({.listen = kLoopback, .patience = 300ms}, page);
  std::vector<RawSocket> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(RawSocket::connect(server.endpoint()));
  silent.back().write("GET /hel");
  // One that asks for much and reads nothing.
  auto deaf = RawSocket::connect(server.endpoint());
  deaf.write("GET /large HTTP/1.1\r\n\r\n");
  EXPECT_EQ(fetch(server.endpoint(), "/hello"), "hello\n");
  for (auto& socket : silent) EXPECT_TRUE(socket.hangs_up());
  EXPECT_TRUE(deaf.hangs_up());
  EXPECT_EQ(fetch(server.endpoint(), "/hello"), "hello\n");
}

TEST(HttpServer, ACrowdFromOneAddressDrivesOutNobodyElse) {
  const net::HttpServer server({.listen = kLoopback, .patience = 30s}, page);
  auto slow = RawSocket::connect(server.endpoint(), "127.0.0.2");
  slow.write("GET /hel");
  std::vector<RawSocket> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(RawSocket::connect(server.endpoint()));
  EXPECT_TRUE(crowd.front().hangs_up());
  slow.write("lo HTTP/1.1\r\n\r\n");
  const auto answer = slow.read(15);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(answer.data()), answer.size()),
            "HTTP/1.1 200 OK");
}

TEST(HttpServer, AClientThatSendsOnAndOnIsCutOff) {
  const net::HttpServer server({.listen = kLoopback, .patience = 300ms}, page);
  auto socket = RawSocket::connect(server.endpoint());
  socket.write("GET /hello HTTP/1.1\r\n\r\n");
  const auto enough = Deadline::after(60s);
  while (socket.write(std::string(1000, 'x')) && !enough.expired()) {
  }
  EXPECT_FALSE(enough.expired());
}

TEST(HttpServer, HangsUpOnEverybodyWhenItEnds) {
  auto server = std::make_unique<net::HttpServer>(
      net::HttpServerOptions{.listen = kLoopback, .patience = 1h}, page);
  const auto at = server->endpoint();
  auto socket = RawSocket::connect(at);
  socket.write("GET");
  server.reset();
  EXPECT_TRUE(socket.hangs_up());
  EXPECT_EQ(error_of(at), ErrorCode::PeerLost);
}

TEST(HttpClient, DoesNotWaitLongerThanItsDeadline) {
  RawServer silent;
  EXPECT_EQ(error_of(silent.endpoint(), "/hello", {}, 200ms), ErrorCode::Timeout);
}

TEST(HttpClient, TellsStrangeServersFromMonitors) {
  for (const char* strange :
       {"SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP/1.1 302 Found\r\n\r\n", "\r\n\r\n"}) {
    RawServer server;
    auto served = std::async(std::launch::async, [&] {
      auto socket = server.accept();
      socket.write(strange);
      socket.shut_down_writing();
      socket.hangs_up();  // or bytes of the request, unread, would reset the connection
    });
    EXPECT_EQ(error_of(server.endpoint()), ErrorCode::ProtocolMismatch) << strange;
    served.get();
  }
}

TEST(HttpClient, AnAnswerThatBreaksOffIsALostPeer) {
  RawServer server;
  auto served = std::async(std::launch::async, [&] {
    auto socket = server.accept();
    socket.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"step\":");
    socket.shut_down_writing();
    socket.hangs_up();
  });
  EXPECT_EQ(error_of(server.endpoint()), ErrorCode::PeerLost);
  served.get();
}

TEST(HttpClient, TakesNoEndlessAnswer) {
  RawServer server;
  auto served = std::async(std::launch::async, [&] {
    auto socket = server.accept();
    socket.write("HTTP/1.1 200 OK\r\n\r\n");
    for (int i = 0; i < 1000; ++i) {
      if (!socket.write(std::string(100'000, 'x'))) return true;
    }
    return false;
  });
  EXPECT_EQ(error_of(server.endpoint()), ErrorCode::ProtocolMismatch);
  EXPECT_TRUE(served.get());
}

TEST(MonitorToken, IsAnotherSecretMadeOfTheJobs) {
  const auto job = net::Token::from_text("0123456789abcdef");
  // printf 'bimetal monitor' | openssl dgst -sha256 -hmac 0123456789abcdef
  EXPECT_EQ(monitor_token(job).text(),
            "50e97eec87a140a1af7bc01b4fedad90151492f0ccacbf41746345d98059465e");
  EXPECT_NE(monitor_token(net::Token::from_text("0123456789abcdee")).text(),
            monitor_token(job).text());
  EXPECT_TRUE(monitor_token({}).empty());
}

std::string fetch(const Monitor& monitor, const char* path, const net::Token& token = {}) {
  return fetch_page({"127.0.0.1", monitor.endpoint().value().port}, path, token,
                    Deadline::after(30s));
}

TEST(Monitor, ListensNowhereUnlessAsked) {
  Monitor monitor({});
  monitor.on_step({.step = 1});
  EXPECT_FALSE(monitor.endpoint());
}

TEST(Monitor, BeyondLoopbackItAsksForATokenThatIsNotTheJobs) {
  const auto job = net::Token::generate();
  EXPECT_THROW(Monitor({.listen = net::Endpoint{"0.0.0.0", 0}}), Error);
  const Monitor monitor({.listen = net::Endpoint{"0.0.0.0", 0}, .job_token = job});
  EXPECT_THAT(fetch(monitor, kMetricsPath, monitor_token(job)), HasSubstr("bimetal_build_info"));
  EXPECT_THROW(fetch(monitor, kMetricsPath, job), Error);
  EXPECT_THROW(fetch(monitor, kMetricsPath), Error);
}

TEST(Monitor, OnLoopbackItAsksForNone) {
  const Monitor monitor(
      {.listen = net::Endpoint{"localhost", 0}, .job_token = net::Token::generate()});
  EXPECT_THAT(fetch(monitor, kMetricsPath), HasSubstr("bimetal_build_info"));
}

}  // namespace
}  // namespace bimetal::monitor
