#include "bimetal/serving/message.h"

#include <gtest/gtest.h>

#include <limits>

namespace bimetal::serving {
namespace {

ModelFacts some_facts() {
  return {.release = "1.2.3",
          .model = "cnn",
          .channels = 1,
          .height = 28,
          .width = 28,
          .classes = 10,
          .mean = {0.25},
          .stddev = {0.5},
          .dtype = comm::DType::float64};
}

/// Everything but the whole is refused as damaged, and nothing else happens.
template <typename Decode>
void expect_cut_bodies_refused(const Body& whole, Decode decode) {
  for (std::size_t size = 0; size < whole.size(); ++size) {
    try {
      decode(std::span(whole).first(size));
      ADD_FAILURE() << size << " bytes were taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::CorruptData);
    }
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode(longer), Error);
}

TEST(ServingMessage, ComesBackAsItWas) {
  EXPECT_EQ(decode_model_facts(encode(some_facts())), some_facts());
  const Figures figures{1, 2, 3, 4, 5, 0.5, 0.75};
  EXPECT_EQ(decode_figures(encode(figures)), figures);
  const Predicted predicted{{7, 9}, {1.5, -0.0, std::numeric_limits<double>::infinity()}};
  const auto again = decode_predicted(encode(predicted), 3);
  EXPECT_EQ(again.weights, predicted.weights);
  EXPECT_EQ(again.logits, predicted.logits);
  EXPECT_EQ(encode(predicted).size(), predicted_bytes(3));
  const auto error = decode_refused(encode(Error(ErrorCode::Aborted, "busy")));
  EXPECT_EQ(error.code(), ErrorCode::Aborted);
  EXPECT_STREQ(error.what(), "busy");
}

TEST(ServingMessage, CutOrLongerBodiesAreRefused) {
  expect_cut_bodies_refused(encode(some_facts()), [](auto body) { decode_model_facts(body); });
  expect_cut_bodies_refused(encode(Figures{}), [](auto body) { decode_figures(body); });
  expect_cut_bodies_refused(encode(Predicted{{1, 1}, {1, 2, 3}}),
                            [](auto body) { decode_predicted(body, 3); });
  expect_cut_bodies_refused(encode(Error(ErrorCode::Timeout, "late")),
                            [](auto body) { decode_refused(body); });
}

TEST(ServingMessage, ImpossibleModelsAreRefused) {
  const auto refused = [](auto change) {
    auto facts = some_facts();
    change(facts);
    EXPECT_THROW(decode_model_facts(encode(facts)), Error);
  };
  refused([](ModelFacts& facts) { facts.channels = 0; });
  refused([](ModelFacts& facts) { facts.height = -28; });
  refused([](ModelFacts& facts) { facts.classes = std::int64_t{1} << 40; });
  refused([](ModelFacts& facts) { facts.stddev = {0}; });
  refused([](ModelFacts& facts) { facts.stddev = {1, 1}; });
  refused([](ModelFacts& facts) { facts.mean = {}; });
  refused([](ModelFacts& facts) { facts.mean[0] = std::numeric_limits<double>::quiet_NaN(); });
  refused([](ModelFacts& facts) { facts.dtype = static_cast<comm::DType>(99); });
}

TEST(ServingMessage, ColoursHaveNumbersOfTheirOwn) {
  auto facts = some_facts();
  facts.channels = 3;
  EXPECT_EQ(decode_model_facts(encode(facts)), facts) << "or one for all";
  facts.mean = {0.25, 0.5, 0.75};
  facts.stddev = {0.5, 1, 2};
  EXPECT_EQ(decode_model_facts(encode(facts)), facts);
  facts.stddev[1] = 0;
  EXPECT_THROW(decode_model_facts(encode(facts)), Error);
}

TEST(ServingMessage, ARequestAndItsAnswerHaveALimit) {
  auto facts = some_facts();
  const auto most = most_samples(facts, comm::DType::uint8);
  EXPECT_LE(static_cast<std::size_t>(most) * 784, kMaxRequestBytes);
  EXPECT_GT(static_cast<std::size_t>(most + 1) * 784, kMaxRequestBytes);
  EXPECT_EQ(most_samples(facts, comm::DType::float64),
            static_cast<std::int64_t>(kMaxRequestBytes / 6272));
  facts.classes = 1 << 20;  // the answers are what is large
  EXPECT_LE(
      predicted_bytes(static_cast<std::size_t>(most_samples(facts, comm::DType::uint8)) << 20),
      kMaxRequestBytes);
  facts.classes = 10;
  facts.height = facts.width = 1 << 13;
  EXPECT_EQ(most_samples(facts, comm::DType::uint8), 0);
}

}  // namespace
}  // namespace bimetal::serving
