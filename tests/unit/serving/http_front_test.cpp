// Predictions and texts by HTTP, asked for by a client that knows no more than sockets.

#include "bimetal/serving/http/http_front.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "unit/net/raw_socket.h"
#include "unit/serving/sum_server.h"

namespace bimetal::serving {
namespace {

using namespace testing;
using net::testing::RawSocket;
using ::testing::StartsWith;
using Json = nlohmann::json;

struct Answered {
  int status = 0;
  std::string head = {};
  Json body = {};
};

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string read_all(const net::Endpoint& at, const std::string& message) {
  auto socket = RawSocket::connect(at);
  socket.write(message);
  return text_of(socket.read(1 << 20));
}

Answered ask_by_http(const net::Endpoint& at, const std::string& message) {
  const auto text = read_all(at, message);
  const auto end = text.find("\r\n\r\n");
  if (!text.starts_with("HTTP/1.1 ") || end == std::string::npos) return {0, text};
  return {std::stoi(text.substr(9, 3)), text.substr(0, end),
          Json::parse(text.substr(end + 4), nullptr, false)};
}

Answered get(const net::Endpoint& at, const std::string& path, const std::string& more = "") {
  return ask_by_http(at, fmt::format("GET {} HTTP/1.1\r\n{}\r\n", path, more));
}

Answered post(const net::Endpoint& at, const std::string& path, const std::string& body) {
  return ask_by_http(
      at, fmt::format("POST {} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", path, body.size(), body));
}

/// Says the prompt's last token plus one, plus two, …
class CountsOn : public Writer {
 public:
  struct Counted : Text {
    explicit Counted(std::int64_t last) : last_(last) {}
    std::int64_t next() override { return ++last_; }
    std::int64_t step() const override { return 17; }
    std::int64_t last_;
  };
  ModelFacts facts() const override {
    return {.release = "1", .model = "counting", .classes = 256, .context = 8};
  }
  std::unique_ptr<Text> begin(const TextRequest& wanted) override {
    if (wanted.prompt.back() > 255) throw Error(ErrorCode::InvalidArgument, "no such token");
    return std::make_unique<Counted>(wanted.prompt.back());
  }
};

class ByHttp : public SumServer {
 protected:
  void answer(HttpFrontOptions options = {}) {
    if (!server_) serve();
    options.listen = {"127.0.0.1", 0};
    front_ = std::make_unique<HttpFront>(options, *server_);
  }
  void write(TextCoding coding) {
    options_.listen = {"127.0.0.1", 0};
    server_ = std::make_unique<Server>(options_, writer_);
    answer({.coding = std::move(coding)});
  }
  net::Endpoint at() const { return front_->endpoint(); }
  std::string why(const Answered& answered) { return answered.body.value("error", ""); }

  CountsOn writer_;
  std::unique_ptr<HttpFront> front_;
};

TEST_F(ByHttp, TellsHowItIsAndWhatItTakes) {
  answer();
  const auto health = get(at(), "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_THAT(health.head, HasSubstr("application/json"));
  EXPECT_EQ(health.body["status"], "ok");
  const auto model = get(at(), "/v1/model").body;
  EXPECT_EQ(model["kind"], "images");
  EXPECT_EQ(model["height"], 2);
  EXPECT_EQ(model["classes"], 2);
}

TEST_F(ByHttp, ListsAndBase64AreTheSameImages) {
  answer();
  const auto one = post(at(), "/v1/predict", R"({"images": [[0, 1, 0], [0, 0, 1]]})");
  ASSERT_EQ(one.status, 200);
  const auto& said = one.body["predictions"];
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0]["class"], 0);
  EXPECT_NEAR(said[0]["probability"], 1 / (1 + std::exp(-4.0)), 1e-12);
  EXPECT_NEAR(said[0]["probabilities"][1], 1 / (1 + std::exp(4.0)), 1e-12);
  EXPECT_GE(one.body["step"], 11);

  const auto two = R"({"images": [[[[0, 1, 0], [0, 0, 1]]], [[[0, 0, 0], [0, 0, 0]]]]})";
  const auto both = post(at(), "/v1/predict", two).body["predictions"];
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(both[0], said[0]);
  EXPECT_EQ(both[1]["probability"], 0.5);
  const auto base64 = post(at(), "/v1/predict", R"({"images_base64": "AAEAAAABAAAAAAAA"})");
  EXPECT_EQ(base64.body["predictions"], both);
}

TEST_F(ByHttp, WhatIsNoImageIsSaid) {
  answer();
  for (const auto& [body, said] : std::vector<std::pair<std::string, std::string>>{
           {"", "JSON object"},
           {"[1]", "JSON object"},
           {std::string(100'000, '['), "JSON object"},
           {"{}", "give \"images\""},
           {R"({"images": [], "images_base64": ""})", "give \"images\""},
           {R"({"images": 7})", "is a list [n][1][2][3]"},
           {R"({"images": [[0, 1, 0]]})", "another length"},
           {R"({"images": [[0, 1, 0], [0, 0, 256]]})", "0 to 255"},
           {R"({"images": [[0, 1, 0], [0, 0, 0.5]]})", "0 to 255"},
           {R"({"images": [[0, 1, 0], [0, 0, "1"]]})", "0 to 255"},
           {R"({"images": [[0, 1, 0], [0, 0, "1"]], "normalised": true})", "no number"},
           {R"({"images_base64": "AAE="})", "no whole number"},
           {R"({"images_base64": "AA E"})", "no base64"},
           {R"({"images_base64": "A"})", "no base64"}}) {
    const auto answered = post(at(), "/v1/predict", body);
    EXPECT_EQ(answered.status, 400) << body.substr(0, 80);
    EXPECT_THAT(why(answered), HasSubstr(said)) << body.substr(0, 80);
  }
  EXPECT_EQ(get(at(), "/v1/predict").status, 405);
  EXPECT_THAT(get(at(), "/v1/predict").head, HasSubstr("Allow: POST"));
  EXPECT_EQ(post(at(), "/health", "").status, 405);
  EXPECT_EQ(get(at(), "/else").status, 404);
  EXPECT_EQ(post(at(), "/v1/generate", R"({"prompt_tokens": [1]})").status, 400);
  expect_served();
}

TEST_F(ByHttp, LimitsHold) {
  answer();
  EXPECT_EQ(
      ask_by_http(at(), "POST /v1/predict HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n").status,
      413);
  EXPECT_EQ(ask_by_http(at(), "POST /v1/predict HTTP/1.1\r\nContent-Length: x\r\n\r\n").status,
            400);
  EXPECT_EQ(
      ask_by_http(at(),
                  "POST /v1/predict HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}")
          .status,
      400);
  EXPECT_EQ(
      ask_by_http(at(), "POST /v1/predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
          .status,
      400);
}

TEST_F(ByHttp, AModelThatFailsOrIsBusyIsSaid) {
  serve({.max_waiting = 1});
  answer({.answer_patience = std::chrono::milliseconds(200)});
  const std::string body = R"({"images": [[0, 1, 0], [0, 0, 1]]})";
  model_.fails = true;
  const auto failed = post(at(), "/v1/predict", body);
  EXPECT_EQ(failed.status, 500);
  EXPECT_THAT(why(failed), HasSubstr("cannot add today"));
  model_.fails = false;
  model_.held = true;
  EXPECT_EQ(post(at(), "/v1/predict", body).status, 504);  // is computed
  EXPECT_EQ(post(at(), "/v1/predict", body).status, 504);  // waits
  EXPECT_EQ(post(at(), "/v1/predict", body).status, 503);
  model_.held = false;
}

TEST_F(ByHttp, ItsEndAnswersNobodyAndDisturbsNobody) {
  answer();
  model_.held = true;
  auto socket = RawSocket::connect(at());
  const std::string body = R"({"images": [[0, 1, 0], [0, 0, 1]]})";
  socket.write(
      fmt::format("POST /v1/predict HTTP/1.1\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
  while (!model_.computing) std::this_thread::sleep_for(milliseconds(1));
  front_.reset();
  EXPECT_TRUE(socket.hangs_up());
  model_.held = false;
  expect_served();
}

TEST_F(ByHttp, PagesOfOtherPlacesAskInVain) {
  answer();
  EXPECT_EQ(get(at(), "/health", "Host: evil.example\r\n").status, 403);
  EXPECT_EQ(get(at(), "/health", "Host: localhost\r\nOrigin: https://evil.example\r\n").status,
            403);
  EXPECT_EQ(get(at(), "/health", fmt::format("Host: {}\r\n", net::to_string(at()))).status, 200);
  EXPECT_EQ(get(at(), "/health", "Host: localhost:1\r\nOrigin: http://localhost:2\r\n").status,
            200);
}

TEST_F(ByHttp, AClientThatWaitsBeforeItsBodyIsToldToGoOn) {
  answer();
  const std::string body = R"({"images": [[0, 1, 0], [0, 0, 1]]})";
  auto socket = RawSocket::connect(at());
  socket.write(
      fmt::format("POST /v1/predict HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
                  body.size()));
  const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
  EXPECT_EQ(text_of(socket.read(go_on.size())), go_on);
  socket.write(body);
  EXPECT_THAT(text_of(socket.read(1 << 20)), StartsWith("HTTP/1.1 200 OK\r\n"));
  // A client that is refused anyway gets no such answer.
  EXPECT_THAT(read_all(at(),
                       "POST /v1/predict HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: "
                       "99999999999\r\n\r\n"),
              StartsWith("HTTP/1.1 413 "));
}

TEST_F(ByHttp, AsksForItsToken) {
  const auto token = net::Token::generate();
  answer({.token = token});
  EXPECT_EQ(get(at(), "/health").status, 401);
  EXPECT_THAT(read_all(at(), "GET /health HTTP/1.1\r\n\r\n"), HasSubstr("docs/serving.md"));
  // A client that knows the token may come by any name.
  const auto known = fmt::format("Host: a.example\r\nAuthorization: Bearer {}\r\n", token.text());
  EXPECT_EQ(get(at(), "/health", known).status, 200);
  EXPECT_EQ(get(at(), "/else").status, 401);
  EXPECT_EQ(get(at(), "/health", fmt::format("Authorization: Bearer {}\r\n", token.text())).status,
            200);
}

TEST_F(ByHttp, GoesOnWithTexts) {
  write({.encode =
             [](const std::string& text) {
               return std::vector<std::int64_t>(text.begin(), text.end());
             },
         .decode =
             [](const std::vector<std::int64_t>& tokens) {
               return std::string(tokens.begin(), tokens.end());
             }});
  const auto said = post(at(), "/v1/generate", R"({"prompt": "xa", "tokens": 3})");
  ASSERT_EQ(said.status, 200);
  EXPECT_EQ(said.body["text"], "bcd");
  EXPECT_EQ(said.body["tokens"], Json({98, 99, 100}));
  EXPECT_EQ(said.body["step"], 17);
  EXPECT_EQ(post(at(), "/v1/generate", R"({"prompt_tokens": [7], "tokens": 1})").body["tokens"],
            Json({8}));
  for (const auto& [body, why_not] : std::vector<std::pair<std::string, std::string>>{
           {R"({"prompt": ""})", "empty"},
           {R"({"prompt": 7})", "give \"prompt\""},
           {R"({"prompt_tokens": [1.5]})", "whole numbers"},
           {R"({"prompt_tokens": [999]})", "no such token"},
           {R"({"prompt": "a", "tokens": 0})", "\"tokens\""},
           {R"({"prompt": "a", "temperature": -1})", "\"temperature\""},
           {R"({"prompt": "a", "top_k": "all"})", "\"top_k\""}}) {
    const auto answered = post(at(), "/v1/generate", body);
    EXPECT_EQ(answered.status, 400) << body;
    EXPECT_THAT(why(answered), HasSubstr(why_not)) << body;
  }
  EXPECT_EQ(post(at(), "/v1/predict", R"({"images": [[0]]})").status, 400);
}

TEST_F(ByHttp, WithoutATokenizerPromptsAreTokens) {
  write({});
  EXPECT_THAT(why(post(at(), "/v1/generate", R"({"prompt": "a"})")), HasSubstr("prompt_tokens"));
  const auto said = post(at(), "/v1/generate", R"({"prompt_tokens": [7], "tokens": 2})");
  EXPECT_EQ(said.body["tokens"], Json({8, 9}));
  EXPECT_FALSE(said.body.contains("text"));
}

}  // namespace
}  // namespace bimetal::serving
