// Texts of a served language model: which client gets which, in what order, and which requests are
// refused.

#include <functional>
#include <future>
#include <thread>

#include "unit/serving/sum_server.h"

namespace bimetal::serving {
namespace {

using namespace testing;
using Tokens = std::vector<std::int64_t>;

/// Counts on from the last token of a prompt; what comes after 666 fails.
class CountingWriter : public Writer {
 public:
  class Counted : public Text {
   public:
    Counted(CountingWriter& writer, std::int64_t last) : writer_(writer), last_(last) {}
    ~Counted() override { ++writer_.ended; }
    std::int64_t next() override {
      while (writer_.held) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(writer_.pause);
      if (last_ == 666) throw Error(ErrorCode::NotFinite, "it cannot count any further");
      return ++last_;
    }
    std::int64_t step() const override { return 17; }

   private:
    CountingWriter& writer_;
    std::int64_t last_;
  };

  ModelFacts facts() const override {
    return {.release = "1", .model = "counting", .classes = 1000, .context = 8};
  }
  std::unique_ptr<Text> begin(const TextRequest& wanted) override {
    if (wanted.prompt.empty()) throw Error(ErrorCode::InvalidArgument, "the prompt is empty");
    ++begun;
    return std::make_unique<Counted>(*this, wanted.prompt.back());
  }

  std::atomic<bool> held{false};
  std::atomic<int> begun{0}, ended{0};
  milliseconds pause{0};
};

class Texts : public SumServer {
 protected:
  void write(const TextOptions& texts = {}) {
    options_.listen = {"127.0.0.1", 0};
    options_.texts = texts;
    server_ = std::make_unique<Server>(options_, writer_);
  }
  static Tokens ask_text(Client& client, Tokens prompt, std::int64_t tokens) {
    Tokens all;
    const auto step = client.write(
        {.tokens = tokens, .prompt = std::move(prompt)},
        [&](const Tokens& piece) { all.insert(all.end(), piece.begin(), piece.end()); },
        in_half_a_minute());
    EXPECT_EQ(step, 17);
    return all;
  }
  void wait_until(const std::function<bool()>& there) {
    const auto deadline = in_half_a_minute();
    while (!there() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(2));
    EXPECT_TRUE(there());
  }

  CountingWriter writer_;
};

TEST_F(Texts, ComeInPiecesWhileTheyGrow) {
  write();
  writer_.pause = milliseconds(5);
  auto one = client();
  int pieces = 0;
  one.write(
      {.tokens = 60, .prompt = {0}}, [&](const Tokens&) { ++pieces; }, in_half_a_minute());
  EXPECT_GT(pieces, 2);
  EXPECT_LT(pieces, 60);
}

TEST_F(Texts, AShortOneDoesNotWaitForALongOne) {
  write();
  writer_.pause = milliseconds(2);
  auto patient = client(), quick = client();
  auto whole = std::async(std::launch::async, [&] { return ask_text(patient, {0}, 500); });
  wait_until([&] { return writer_.begun == 1; });
  EXPECT_EQ(ask_text(quick, {100}, 5), (Tokens{101, 102, 103, 104, 105}));
  EXPECT_NE(whole.wait_for(milliseconds(0)), std::future_status::ready);
  EXPECT_EQ(whole.get().back(), 500);
}

TEST_F(Texts, FailuresAreToldToWhoAskedAndTheOthersGoOn) {
  write();
  writer_.pause = milliseconds(1);
  auto lucky = client(), unlucky = client();
  auto whole = std::async(std::launch::async, [&] { return ask_text(lucky, {0}, 200); });
  expect_error(ErrorCode::InvalidArgument, "the prompt is empty",
               [&] { ask_text(unlucky, {}, 5); });
  expect_error(ErrorCode::NotFinite, "cannot count any further",
               [&] { ask_text(unlucky, {660}, 50); });
  EXPECT_EQ(whole.get().size(), 200u);
  EXPECT_EQ(ask_text(unlucky, {1}, 1), (Tokens{2}));
}

TEST_F(Texts, TooManyAreTurnedAway) {
  write({.at_once = 1, .max_waiting = 1});
  writer_.held = true;
  auto first = client(), second = client(), third = client();
  auto growing = std::async(std::launch::async, [&] { return ask_text(first, {0}, 3); });
  wait_until([&] { return writer_.begun == 1; });
  auto waiting = std::async(std::launch::async, [&] { return ask_text(second, {10}, 3); });
  wait_until([&] {
    auto watcher = client();
    return watcher.figures(in_half_a_minute()).clients >= 3;
  });
  std::this_thread::sleep_for(milliseconds(100));  // for its request, which nothing tells of
  expect_error(ErrorCode::Aborted, "busy", [&] { ask_text(third, {0}, 1); });
  writer_.held = false;
  EXPECT_EQ(growing.get().size(), 3u);
  EXPECT_EQ(waiting.get(), (Tokens{11, 12, 13}));
}

TEST_F(Texts, EndWithTheirClient) {
  write({.at_once = 1, .max_waiting = 4});
  writer_.pause = milliseconds(5);
  {
    auto leaving = client();
    EXPECT_THROW(
        leaving.write({.tokens = 100'000, .prompt = {0}}, {}, Deadline::after(milliseconds(200))),
        Error);
  }
  auto other = client();
  EXPECT_EQ(ask_text(other, {1}, 2), (Tokens{2, 3}));  // the place is free
  EXPECT_GE(writer_.ended, 1);
}

TEST_F(Texts, MayBeGivenUpWhileTheyArrive) {
  write({.at_once = 1, .max_waiting = 4});
  for (int i = 0; i < 60; ++i) {  // so that some deadlines pass between an answer and its reading
    auto leaving = client();
    const auto wait = std::chrono::microseconds(20'000 + 370 * i);
    EXPECT_THROW(leaving.write({.tokens = 10'000'000, .prompt = {0}}, {}, Deadline::after(wait)),
                 Error);
  }
}

TEST_F(Texts, OtherModelsAndOtherQuestionsAreToldApart) {
  write();
  auto one = client();
  const auto pixels = some_pixels(1, 3);
  expect_error(ErrorCode::InvalidArgument, "is a language model", [&] { ask(one, pixels); });
  server_.reset();
  serve();
  auto other = client();
  expect_error(ErrorCode::InvalidArgument, "is no language model",
               [&] { ask_text(other, {1}, 1); });
  EXPECT_EQ(ask(other, pixels).logits, sums_of(pixels));
}

TEST(TextMessages, SayTheSameAgain) {
  const TextRequest request{
      .tokens = 9, .temperature = 0.5, .top_k = 3, .seed = 1ull << 63, .prompt = {1, 50000}};
  EXPECT_EQ(decode_text_request(encode(request)), request);
  const TextPiece piece{.step = 12, .last = true, .tokens = {5, 6}};
  EXPECT_EQ(decode_text_piece(encode(piece)), piece);
  auto cut = encode(request);
  cut.pop_back();
  EXPECT_THROW(decode_text_request(cut), Error);
}

}  // namespace
}  // namespace bimetal::serving
