// CPace against the test vectors of draft-irtf-cfrg-cpace-21 (appendix B, ristretto255 and
// SHA-512), and what has to be refused.

#include "bimetal/net/pairing/cpace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <string>

#include "bimetal/base/error.h"

namespace bimetal::net::cpace {
namespace {

std::vector<std::byte> from_hex(std::string_view text) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    out.push_back(static_cast<std::byte>(value));
  }
  return out;
}

template <std::size_t size = kShareBytes>
std::array<std::byte, size> point(std::string_view text) {
  std::array<std::byte, size> out{};
  const auto bytes = from_hex(text);
  EXPECT_EQ(bytes.size(), size);
  std::ranges::copy(bytes, out.begin());
  return out;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

using enum Exchange::Role;

class CPace : public ::testing::Test {
 protected:
  const std::vector<std::byte> channel =
      from_hex("0b415f696e69746961746f720b425f726573706f6e646572");
  const std::vector<std::byte> session = from_hex("7e4b4791d6a8ef019b936c79fb7f2c57");
  const Inputs inputs{"Password", channel, session};
  const Scalar ya = point("da3d23700a9e5699258aef94dc060dfda5ebb61f02a5ea77fad53f4ff0976d08");
  const Scalar yb = point("d2316b454718c35362d83d69df6320f38578ed5984651435e2949762d900b80d");
  const Share share_a = point("d6bac480f2c386c394efc7c47adb9925dcd2630b64f240c50f8d0eec482b9157");
  const Share share_b = point("3ea7e0b19560d7c0b0f5734f63b955286dfa8232b5ebe63324e2d9e7433f7258");
};

TEST_F(CPace, GeneratorSharesAndKeyAreTheDrafts) {
  EXPECT_EQ(generator(inputs),
            point("222b6b195fe84b1652badb6f6a3ae3d24341e7306967f0b8115b40d5698c7e56"));
  Exchange a(initiator, inputs, bytes_of("ADa"), ya), b(responder, inputs, bytes_of("ADb"), yb);
  EXPECT_EQ(a.share(), share_a);
  EXPECT_EQ(b.share(), share_b);
  a.receive(b.share(), bytes_of("ADb"));
  b.receive(a.share(), bytes_of("ADa"));
  const auto key = point<64>(
      "b69effbf61b51d56401c0f65601abe428de8206feaaf0e32198896dcae7b35cd2b38950a39dfd5d4a79164614c29"
      "84f7daa460b588c1e80c3fa2068af7900447");
  EXPECT_EQ(a.session_key(), key);
  EXPECT_EQ(b.session_key(), key);
}

TEST_F(CPace, LengthsAreTheDrafts) {
  EXPECT_EQ(lv_cat({bytes_of("1234"), bytes_of("5"), {}, bytes_of("678")}),
            from_hex("043132333401350003363738"));
  const std::vector<std::byte> longer(128);
  const auto prefixed = lv_cat({longer});
  EXPECT_EQ(prefixed.size(), 130u);
  EXPECT_EQ(prefixed[0], std::byte{0x80});
  EXPECT_EQ(prefixed[1], std::byte{0x01});
}

TEST_F(CPace, InvalidPointsAreRefused) {
  for (const auto* text : {"2b3c6b8c4f3800e7aef6864025b4ed79bd599117e427c41bd47d93d654b4a51c",
                           "0000000000000000000000000000000000000000000000000000000000000000",
                           "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"}) {
    Exchange side(responder, inputs, {}, yb);
    try {
      side.receive(point(text), {});
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unauthorized);
    }
  }
}

/// Whether both sides confirm; with what differs between them.
bool agree(const Inputs& of_a, const Inputs& of_b, std::string_view seen_by_b = "a") {
  Exchange a(initiator, of_a, bytes_of("a")), b(responder, of_b, bytes_of("b"));
  a.receive(b.share(), bytes_of("b"));
  b.receive(a.share(), bytes_of(seen_by_b));
  const bool both = a.confirms(b.tag()) && b.confirms(a.tag());
  EXPECT_EQ(both, a.confirms(b.tag()) || b.confirms(a.tag()));
  EXPECT_EQ(both, a.session_key() == b.session_key());
  return both;
}

TEST_F(CPace, SidesAgreeOnlyWhereEverythingIsTheSame) {
  const auto other = from_hex("00");
  EXPECT_TRUE(agree(inputs, inputs));
  EXPECT_FALSE(agree(inputs, {"password", channel, session}));
  EXPECT_FALSE(agree(inputs, {"Password", other, session}));
  EXPECT_FALSE(agree(inputs, {"Password", channel, other}));
  EXPECT_FALSE(agree(inputs, inputs, "another name"));
  const std::string longer(300, 'x');  // longer than the padding
  EXPECT_TRUE(agree({longer, channel, session}, {longer, channel, session}));
}

TEST_F(CPace, ATagSentBackIsNone) {
  Exchange a(initiator, inputs, bytes_of("a")), b(responder, inputs, bytes_of("b"));
  a.receive(b.share(), bytes_of("b"));
  EXPECT_FALSE(a.confirms(a.tag()));
}

TEST_F(CPace, SharesAreFresh) {
  EXPECT_NE(Exchange(initiator, inputs, {}).share(), Exchange(initiator, inputs, {}).share());
}

}  // namespace
}  // namespace bimetal::net::cpace
