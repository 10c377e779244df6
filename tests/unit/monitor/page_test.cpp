#include "bimetal/monitor/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "bimetal/monitor/monitor.h"
#include "unit/net/raw_socket.h"

namespace bimetal::monitor {
namespace {

using namespace std::chrono_literals;
using net::testing::RawSocket;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Until the text has `mark`, and from there on `end`.
std::string read_until(RawSocket& socket, std::string_view end, std::string_view mark = "") {
  std::string text;
  while (!text.ends_with(end) || text.find(mark) == std::string::npos) {
    const auto bytes = socket.read(1);
    if (bytes.empty()) break;
    text += static_cast<char>(bytes[0]);
  }
  return text;
}

/// A job's monitor with all buttons, and a browser that talks to it.
class PageTest : public ::testing::Test {
 protected:
  explicit PageTest(const char* host = "127.0.0.1", const net::Token& token = {})
      : monitor({.listen = net::Endpoint{host, 0},
                 .job_token = token,
                 .buttons = {.requests = &requests, .save = true, .leave = true}}) {}

  std::string site() const { return fmt::format("127.0.0.1:{}", monitor.endpoint()->port); }

  std::string send(std::string_view method, std::string_view path, const std::string& head = {},
                   const std::string& body = {}) const {
    auto socket = RawSocket::connect({"127.0.0.1", monitor.endpoint()->port});
    socket.write(fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n{}\r\n{}", method,
                             path, site(), body.size(), head, body));
    const auto bytes = socket.read(1 << 20);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// By the link, as the terminal shows it: "Cookie: …".
  std::string log_in() {
    const auto answer = send("GET", monitor.link_path());
    std::smatch cookie;
    EXPECT_TRUE(std::regex_search(answer, cookie, std::regex("Set-Cookie: ([^;]+);"))) << answer;
    return fmt::format("Cookie: other=1; {}\r\n", cookie.str(1));
  }

  /// The first events that a listener gets, in which is what buttons need.
  std::string listen(const std::string& head = {}) const {
    auto socket = RawSocket::connect({"127.0.0.1", monitor.endpoint()->port});
    socket.write(fmt::format("GET /events HTTP/1.1\r\nHost: {}\r\n{}\r\n", site(), head));
    return read_until(socket, "}\n\n", "event: status");
  }

  std::string press_secret(const std::string& cookie) const {
    std::smatch secret;
    const auto events = listen(cookie);
    EXPECT_TRUE(std::regex_search(events, secret, std::regex("\"press\":\"([0-9a-f]+)\"")))
        << events;
    return secret.str(1);
  }

  std::string press(const std::string& cookie, const std::string& secret, const std::string& origin,
                    const std::string& body) const {
    return send("POST", "/press",
                fmt::format("{}X-Bimetal-Press: {}\r\nOrigin: {}\r\n", cookie, secret, origin),
                body);
  }

  progress::Requests requests;
  Monitor monitor;
};

class PageBeyondLoopback : public PageTest {
 protected:
  PageBeyondLoopback() : PageTest("0.0.0.0", net::Token::generate()) {}
};

TEST_F(PageTest, IsOneFileThatLoadsNothing) {
  const auto answer = send("GET", "/");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("default-src 'none'; script-src 'sha256-"));
  EXPECT_THAT(answer, HasSubstr("frame-ancestors 'none'"));
  EXPECT_THAT(answer, Not(HasSubstr("unsafe-inline")));
  EXPECT_LT(answer.size(), 100'000U);
  // All text goes in as text.
  for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                          "src=\"http", "href=\"http", "@import", " style=\""}) {
    EXPECT_THAT(answer, Not(HasSubstr(way)));
  }
  EXPECT_THAT(answer, AllOf(Not(HasSubstr("@STYLE@")), Not(HasSubstr("@SCRIPT@"))));
  EXPECT_TRUE(answer.ends_with("</html>\n"));
}

TEST_F(PageTest, TellsWhatHappensAsItHappens) {
  monitor.on_workers({{"<script>alert(1)</script>", "cpu"}});
  monitor.on_step({.step = 1, .steps = 9, .shares = {8}, .rank_samples_per_s = {5}});
  auto socket = RawSocket::connect({"127.0.0.1", monitor.endpoint()->port});
  socket.write(fmt::format("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", site()));
  const auto first = read_until(socket, "}\n\n", "event: status");
  EXPECT_THAT(first, HasSubstr("Content-Type: text/event-stream\r\n"));
  EXPECT_THAT(first, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(first, Not(HasSubstr("Content-Length")));
  EXPECT_THAT(first, AllOf(HasSubstr("event: hello\n"), HasSubstr("event: history\n"),
                           HasSubstr("event: status\n"), HasSubstr("<script>alert(1)</script>")));
  EXPECT_THAT(first, HasSubstr("\"press\":null"));
  monitor.on_notice("a line\nand another, \"quoted\"");
  const auto second = read_until(socket, "event: status");
  EXPECT_THAT(second, HasSubstr("event: news\ndata: {\"events\":[{\"at\":"));
  EXPECT_THAT(second, HasSubstr("a line\\nand another, \\\"quoted\\\""));
}

TEST_F(PageTest, OtherPlacesCannotReadIt) {
  for (const char* head : {"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                           "GET /events HTTP/1.1\r\nHost: evil.example:9100\r\n\r\n",
                           "GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://evil.example"
                           "\r\n\r\n"}) {
    auto socket = RawSocket::connect({"127.0.0.1", monitor.endpoint()->port});
    socket.write(head);
    EXPECT_THAT(read_until(socket, "\r\n"), StartsWith("HTTP/1.1 403 ")) << head;
  }
}

TEST_F(PageTest, ALinkLetsOneBrowserIn) {
  const auto link = monitor.link();
  EXPECT_THAT(link, StartsWith("http://" + site() + "/open/"));
  const auto path = link.substr(link.find("/open/"));
  EXPECT_THAT(send("HEAD", path), StartsWith("HTTP/1.1 401 "));  // only looked at
  EXPECT_THAT(send("GET", path.substr(0, path.size() - 1)), StartsWith("HTTP/1.1 401 "));
  const auto answer = send("GET", path);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 303 "));
  EXPECT_THAT(answer, HasSubstr("Location: /\r\n"));
  EXPECT_THAT(answer, HasSubstr("; HttpOnly; SameSite=Strict\r\n"));
  EXPECT_THAT(send("GET", path), StartsWith("HTTP/1.1 401 "));
}

TEST_F(PageTest, ButtonsAskTheRun) {
  const auto cookie = log_in();
  const auto secret = press_secret(cookie), own = "http://" + site();
  EXPECT_THAT(press(cookie, secret, own, R"({"ask":"save"})"), StartsWith("HTTP/1.1 200 "));
  EXPECT_TRUE(requests.take().save);
  press(cookie, secret, own, R"({"ask":"leave","worker":2})");
  press(cookie, secret, own, R"({"ask":"profile","steps":10})");
  press(cookie, secret, own, R"({"ask":"stop"})");
  const auto asked = requests.take();
  EXPECT_EQ(asked.leave, 2);
  EXPECT_EQ(asked.profile, 10);
  EXPECT_TRUE(asked.stop && !asked.save);
  EXPECT_THAT(press(cookie, secret, own, R"({"ask":"link"})"), HasSubstr("{\"link\":\"/open/"));
  for (const char* wrong : {"", "{}", "[1]", R"({"ask":"leave"})", R"({"ask":"leave","worker":-1})",
                            R"({"ask":"profile","steps":0})", R"({"ask":"profile","steps":1e9})",
                            R"({"ask":"leave","worker":"<b>"})", R"({"ask":["save"]})"}) {
    EXPECT_THAT(press(cookie, secret, own, wrong), StartsWith("HTTP/1.1 400 ")) << wrong;
  }
  EXPECT_EQ(requests.take().leave, -1);
}

TEST_F(PageTest, OnlyThePageItselfMayPress) {
  const auto cookie = log_in();
  const auto secret = press_secret(cookie), own = "http://" + site();
  const auto wish = std::string(R"({"ask":"stop"})");
  EXPECT_THAT(press("", secret, own, wish), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(press("Cookie: bimetal=1\r\n", secret, own, wish), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(press(cookie, "0", own, wish), StartsWith("HTTP/1.1 403 "));
  // Another server of this machine, and a place elsewhere.
  EXPECT_THAT(press(cookie, secret, "http://127.0.0.1:1", wish), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(press(cookie, secret, "http://evil.example", wish), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(press(cookie, secret, "null", wish), StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(send("POST", "/press", cookie + "X-Bimetal-Press: " + secret + "\r\n", wish),
              StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(send("GET", "/press", cookie), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(send("POST", "/status", cookie, wish), StartsWith("HTTP/1.1 405 "));
  EXPECT_FALSE(requests.take().stop);
}

TEST_F(PageTest, WhatTheJobCannotDoIsRefused) {
  Access access;
  const Recorder recorder;
  const History history;
  Page page(recorder, history, access, {.requests = &requests});
  const auto link = access.new_link();
  const auto line = access.open(link).value();
  const auto cookie = line.substr(12, line.find(';') - 12);
  const net::HttpRequest request{.method = "POST",
                                 .path = "/press",
                                 .host = "localhost:1",
                                 .origin = "http://localhost:1",
                                 .cookie = cookie,
                                 .press = access.press()};
  EXPECT_EQ(page.answer(request, R"({"ask":"stop"})")->status, 200);
  EXPECT_EQ(page.answer(request, R"({"ask":"save"})")->status, 403);
  EXPECT_EQ(page.answer(request, R"({"ask":"leave","worker":1})")->status, 403);
}

TEST_F(PageTest, SoManyMayListenAndNoMore) {
  std::vector<RawSocket> listeners;
  for (int i = 0; i < 16; ++i) {
    auto& socket =
        listeners.emplace_back(RawSocket::connect({"127.0.0.1", monitor.endpoint()->port}));
    socket.write(fmt::format("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", site()));
    read_until(socket, "event: hello");
  }
  EXPECT_THAT(listen(), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(send("GET", "/status"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(PageBeyondLoopback, NobodyIsLetInWithoutTheLink) {
  for (const char* path : {"/", "/events", "/status", "/open/", "/open/0"}) {
    EXPECT_THAT(send("GET", path), StartsWith("HTTP/1.1 401 ")) << path;
  }
  const auto cookie = log_in();
  EXPECT_THAT(send("GET", "/", cookie), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(listen(cookie), HasSubstr("event: status"));
  EXPECT_THAT(send("GET", "/", cookie.substr(0, cookie.size() - 4) + "\r\n"),
              StartsWith("HTTP/1.1 401 "));
  const auto secret = press_secret(cookie);
  EXPECT_THAT(press(cookie, secret, "http://evil.example", R"({"ask":"stop"})"),
              StartsWith("HTTP/1.1 403 "));
  EXPECT_THAT(press(cookie, secret, "http://" + site(), R"({"ask":"stop"})"),
              StartsWith("HTTP/1.1 200 "));
}

TEST(HttpStream, AListenerThatReadsNothingIsHungUpOnAndHoldsUpNobody) {
  const auto endless = [](const net::HttpRequest& request, std::string_view,
                          const net::HttpServer::Respond& respond) {
    net::HttpAnswer answer;
    if (request.path == "/events") answer.stream = [] { return std::string(1 << 20, 'x'); };
    respond(answer);
  };
  const net::HttpServer server(
      {.listen = {"127.0.0.1", 0}, .patience = 300ms, .stream_every = 10ms}, endless);
  auto deaf = RawSocket::connect(server.endpoint());
  deaf.write("GET /events HTTP/1.1\r\n\r\n");
  auto quick = RawSocket::connect(server.endpoint());
  quick.write("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(read_until(quick, "\r\n"), StartsWith("HTTP/1.1 200 "));
  std::this_thread::sleep_for(1s);  // reads nothing meanwhile
  EXPECT_TRUE(deaf.hangs_up());
}

}  // namespace
}  // namespace bimetal::monitor
