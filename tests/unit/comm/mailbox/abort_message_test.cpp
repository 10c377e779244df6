#include "bimetal/comm/mailbox/abort_message.h"

#include <gtest/gtest.h>

namespace bimetal::comm {
namespace {

TEST(AbortMessage, EveryCodeComesBack) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::Internal); ++code) {
    const Failure failure{static_cast<ErrorCode>(code), "why", 5};
    EXPECT_EQ(decode_abort(encode({failure})).failure, failure) << code;
  }
}

TEST(AbortMessage, MayBlameNobody) {
  const Failure failure{ErrorCode::Timeout, "", {}};
  EXPECT_EQ(decode_abort(encode({failure})).failure, failure);
}

TEST(AbortMessage, AFarewellHasNoFailure) {
  EXPECT_EQ(decode_abort(encode({})).failure, std::nullopt);
}

TEST(AbortMessage, LongTextsAreCut) {
  const auto bytes = encode({Failure{ErrorCode::Aborted, std::string(100000, 'x'), {}}});
  EXPECT_LE(bytes.size(), kMaxAbortBytes);
  EXPECT_GT(decode_abort(bytes).failure->message.size(), kMaxAbortBytes / 2);
}

TEST(AbortMessage, DamageIsNoticed) {
  const auto whole = encode({Failure{ErrorCode::Aborted, "why", 5}});
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THROW(decode_abort(std::span(whole).first(size)), Error) << size;
  }
  auto longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_abort(longer), Error);
  auto unknown = whole;
  unknown[0] = std::byte{200};
  EXPECT_THROW(decode_abort(unknown), Error);
}

}  // namespace
}  // namespace bimetal::comm
