#include <gtest/gtest.h>

#include <cmath>
#include <span>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "support/errors.h"
#include "unit/comm/compress/sample_values.h"

namespace bimetal::comm {
namespace {

constexpr Scheme kDense[] = {Scheme::float16, Scheme::bfloat16, Scheme::int8, Scheme::int4,
                             Scheme::sign};

std::vector<std::byte> encoded(Scheme scheme, std::span<const float> values) {
  // Bytes that must not be touched lie behind.
  std::vector<std::byte> bytes(encoded_bytes(scheme, values.size()) + 16, std::byte{0xa5});
  encode(scheme, values, bytes);
  for (std::size_t i = bytes.size() - 16; i < bytes.size(); ++i) {
    EXPECT_EQ(bytes[i], std::byte{0xa5}) << to_string(scheme) << " writes too far";
  }
  bytes.resize(bytes.size() - 16);
  return bytes;
}

std::vector<float> through(Scheme scheme, std::span<const float> values) {
  std::vector<float> result(values.size());
  decode(scheme, encoded(scheme, values), result);
  return result;
}

TEST(DenseCodec, SignSendsTheMeanMagnitude) {
  std::vector<float> values = {1, -2, 3, -10};
  EXPECT_EQ(through(Scheme::sign, values), (std::vector<float>{4, -4, 4, -4}));
}

TEST(DenseCodec, WholeMultiplesOfTheScaleAreExact) {
  std::vector<float> values(300);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(int(i % 255) - 127);
  values[128] = values[256] = 127;
  EXPECT_EQ(through(Scheme::int8, values), values);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(int(i % 15) - 7);
  values[298] = values[299] = 7;
  EXPECT_EQ(through(Scheme::int4, values), values);
}

TEST(DenseCodec, MessagesAreAsLongAsTheDocsSay) {
  EXPECT_EQ(encoded_bytes(Scheme::float16, 1000), 2000u);
  EXPECT_EQ(encoded_bytes(Scheme::bfloat16, 1000), 2000u);
  EXPECT_EQ(encoded_bytes(Scheme::int8, 1024), 1024u + 8 * 2);
  EXPECT_EQ(encoded_bytes(Scheme::int4, 1024), 512u + 8 * 2);
  EXPECT_EQ(encoded_bytes(Scheme::int4, 131), 64u + 2 + 2 * 2);
  EXPECT_EQ(encoded_bytes(Scheme::sign, 1024), 128u + 2 * 2);
}

// A block with something in it that is no number decodes to nothing but NaN; float16 and bfloat16
// keep the element itself. Other blocks are as they would have been.
TEST(DenseCodec, WhatIsNotFiniteStaysVisible) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Scheme scheme : kDense) {
    const bool half = scheme == Scheme::float16 || scheme == Scheme::bfloat16;
    const std::size_t block = scheme == Scheme::sign ? kSignBlock : kQuantBlock;
    for (const float odd : {kNan, kInfinity, -kInfinity}) {
      for (const std::size_t at : {std::size_t{0}, block + 3, 2 * block + 1}) {
        SCOPED_TRACE(::testing::Message() << to_string(scheme) << ": " << odd << " at " << at);
        std::vector<float> values(2 * block + 2, 0.5f);
        values[at] = odd;
        const auto decoded = through(scheme, values);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (half && i == at) {
            ASSERT_TRUE(std::isnan(odd) ? std::isnan(decoded[i]) : decoded[i] == odd);
          } else if (!half && i / block == at / block) {
            ASSERT_TRUE(std::isnan(decoded[i])) << i;
          } else {
            ASSERT_NEAR(decoded[i], 0.5f, 0.01f) << i;
          }
        }
      }
    }
  }
}

TEST(DenseCodec, TruncatedBytesAreRefused) {
  for (const Scheme scheme : kDense) {
    std::vector<float> values(1000, 1.0f);
    const auto bytes = encoded(scheme, values);
    for (std::size_t length = 0; length < bytes.size() + 3; ++length) {
      if (length == bytes.size()) continue;
      auto cut = bytes;
      cut.resize(length);
      expect_error(ErrorCode::CorruptData, {}, [&] { decode(scheme, cut, values); });
    }
  }
}

TEST(DenseCodec, RandomBytesDecodeToSomething) {
  std::mt19937 random(1);
  for (const Scheme scheme : kDense) {
    for (std::size_t count = 0; count < 700; count += 13) {
      std::vector<std::byte> bytes(encoded_bytes(scheme, count));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
      std::vector<float> values(count + 1, 42.0f);
      decode(scheme, bytes, std::span(values).first(count));
      EXPECT_EQ(values.back(), 42.0f);
    }
  }
}

}  // namespace
}  // namespace bimetal::comm
