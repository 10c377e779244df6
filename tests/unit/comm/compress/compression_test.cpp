#include "bimetal/comm/compress/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "bimetal/base/error.h"
#include "bimetal/comm/call.h"
#include "support/errors.h"

namespace bimetal::comm {
namespace {

using ::testing::HasSubstr;

std::string refusal(const Compression& compression, std::size_t count = 100,
                    DType dtype = DType::float32, ReduceOp op = ReduceOp::sum) {
  return text_of(ErrorCode::InvalidArgument, [&] { tag_of(compression, count, dtype, op); });
}

TEST(Compression, NamesAreReadBack) {
  for (int i = 0; i < 8; ++i) {
    const auto scheme = static_cast<Scheme>(i);
    EXPECT_EQ(scheme_of(to_string(scheme)), scheme);
  }
  expect_error(ErrorCode::InvalidArgument,
               {"none, float16, bfloat16, int8, int4, topk, powersgd, sign"},
               [&] { scheme_of("zip"); });
}

TEST(Compression, IntegersAreRefused) {
  for (const DType dtype : {DType::int8, DType::int16, DType::int32, DType::int64, DType::uint8}) {
    for (int scheme = 1; scheme < 8; ++scheme) {
      EXPECT_THAT(refusal({.scheme = static_cast<Scheme>(scheme)}, 100, dtype),
                  HasSubstr(std::string(to_string(dtype)) + " data is never compressed"));
    }
    EXPECT_EQ(refusal({}, 100, dtype), "");
  }
}

TEST(Compression, WhatCanNeverWorkIsRefused) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    EXPECT_THAT(refusal({.scheme = Scheme::int8}, 100, DType::float32, op),
                HasSubstr(std::string(to_string(op))));
  }
  EXPECT_THAT(refusal({.scheme = static_cast<Scheme>(8)}), HasSubstr("unknown compression (8)"));
  for (const double density : {0.0, -1.0, 1.1, std::nan("")}) {
    EXPECT_THAT(refusal({.scheme = Scheme::topk, .density = density}), HasSubstr("density"));
  }
  for (const double momentum : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THAT(refusal({.scheme = Scheme::topk, .momentum = momentum}), HasSubstr("momentum"));
  }
  EXPECT_THAT(refusal({.scheme = Scheme::topk}, std::size_t{1} << 32), HasSubstr("at most"));
  for (const int rank : {0, -1, 256}) {
    EXPECT_THAT(refusal({.scheme = Scheme::powersgd, .rank = rank}), HasSubstr("rank"));
  }
  for (const std::vector<Matrix>& matrices :
       {std::vector<Matrix>{{10, 9}}, std::vector<Matrix>{{10, 11}}, std::vector<Matrix>{{0, 10}},
        std::vector<Matrix>{{std::size_t{1} << 33, std::size_t{1} << 33}}}) {
    EXPECT_THAT(refusal({.scheme = Scheme::powersgd, .matrices = matrices}), HasSubstr("matri"));
  }
  const auto memory = std::make_shared<BucketMemory>();
  memory->residual.resize(99);
  EXPECT_THAT(refusal({.scheme = Scheme::int8, .memory = memory}), HasSubstr("99 elements"));
}

TEST(Compression, TagsTellWhatMessagesDependOn) {
  const auto tag = [](const Compression& compression) {
    return tag_of(compression, 1000, DType::float32, ReduceOp::sum);
  };
  EXPECT_EQ(tag({}), CompressionTag{});
  EXPECT_NE(tag({.scheme = Scheme::int8}), tag({.scheme = Scheme::int4}));
  EXPECT_EQ(tag({.scheme = Scheme::topk, .density = 0.01}).detail, 10u);
  const auto memory = std::make_shared<BucketMemory>();
  const Compression whole{.scheme = Scheme::powersgd, .rank = 4, .memory = memory};
  Compression cut = whole;
  cut.matrices = {{10, 50}, {50, 10}};
  EXPECT_NE(tag(whole), tag(cut));
  const auto before = tag(whole);
  memory->basis = {1, 2};
  EXPECT_NE(tag(whole), before);
  EXPECT_NE(tag({.scheme = Scheme::int8}),
            tag({.scheme = Scheme::int8, .links = CompressedLinks::between_islands}));
}

TEST(Compression, TagsFitIntoAHeadersByte) {
  for (const auto links : {CompressedLinks::all, CompressedLinks::between_islands}) {
    EXPECT_EQ(compressed_links_of(to_string(links)), links);
    for (const auto scheme : {Scheme::float16, Scheme::topk, Scheme::sign}) {
      const CompressionTag tag{scheme, links, 17};
      EXPECT_EQ(CompressionTag::from(tag.code(), 17), tag);
    }
  }
  EXPECT_THROW(compressed_links_of("some"), Error);
}

// It travels: factors of ranks are compared by it.
TEST(Checksum, IsFnv1a) {
  const std::array text = {std::byte{'a'}};
  EXPECT_EQ(checksum_of(text), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(checksum_of({}), 0xcbf29ce484222325u);
}

}  // namespace
}  // namespace bimetal::comm
