#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "bimetal/base/json.h"
#include "bimetal/base/log.h"
#include "bimetal/base/typed_text.h"

namespace bimetal {
namespace {

constexpr std::array<std::string_view, 5> kKeys = {"epochs", "steps", "seed", "global_batch",
                                                   "learning_rate"};

TEST(NearestName, FindsTheNameBehindEachKindOfSlip) {
  EXPECT_EQ(nearest_name("learning_rat", kKeys), "learning_rate");  // a letter missing
  EXPECT_EQ(nearest_name("stepps", kKeys), "steps");                // one too many
  EXPECT_EQ(nearest_name("sead", kKeys), "seed");                   // a wrong one
  EXPECT_EQ(nearest_name("epohcs", kKeys), "epochs");               // neighbours swapped
  EXPECT_EQ(nearest_name("Global-Batch", kKeys), "global_batch");   // another spelling
  EXPECT_EQ(nearest_name("seed", kKeys), "seed");
}

TEST(NearestName, ASwapCostsLessThanTwoReplacements) {
  constexpr std::array<std::string_view, 2> names = {"bxc", "ab"};
  EXPECT_EQ(nearest_name("ba", names), "ab");
}

TEST(NearestName, TheFirstOfEqualsWins) {
  constexpr std::array<std::string_view, 2> names = {"cat", "bat"};
  EXPECT_EQ(nearest_name("rat", names), "cat");
}

TEST(NearestName, TakesEmptyWordsAndLists) {
  EXPECT_EQ(nearest_name("", kKeys), "seed");
  EXPECT_EQ(nearest_name("seed", {}), "");
}

TEST(JsonString, QuotesAndEscapes) {
  EXPECT_EQ(json_string(""), R"("")");
  EXPECT_EQ(json_string("plain, with blanks"), R"("plain, with blanks")");
  EXPECT_EQ(json_string("a\"b\\c\n\t"), R"("a\"b\\c\u000a\u0009")");
  EXPECT_EQ(json_string(std::string_view("\0", 1)), R"("\u0000")");
}

TEST(JsonString, KeepsUtf8AndReplacesWhatIsNone) {
  EXPECT_EQ(json_string("größe €😀"), "\"größe €😀\"");
  EXPECT_EQ(json_string("a\xff"), R"("a\ufffd")");
  EXPECT_EQ(json_string("\xc3"), R"("\ufffd")");                      // ends too early
  EXPECT_EQ(json_string("\xc0\xaf"), R"("\ufffd\ufffd")");            // overlong
  EXPECT_EQ(json_string("\xed\xa0\x80"), R"("\ufffd\ufffd\ufffd")");  // a surrogate
  EXPECT_EQ(json_string("\xf5\x80\x80\x80"), R"("\ufffd\ufffd\ufffd\ufffd")");
}

TEST(Url, IsToldFromAFolder) {
  for (const char* url : {"s3://bucket/a", "https://host/a", "file:///a", "simplecache::s3://b/c",
                          "zip://a::https://host/b.zip", "git+ssh://x"}) {
    EXPECT_TRUE(is_url(url)) << url;
  }
  for (const char* path :
       {"", "/srv/data", "data", "a b://c", "://", "C://data", "//server/share"}) {
    EXPECT_FALSE(is_url(path)) << path;
  }
}

TEST(Url, IsShownWithoutSecrets) {
  EXPECT_EQ(without_secrets("https://anna:pa55@host:8080/a/b"), "https://***@host:8080/a/b");
  EXPECT_EQ(without_secrets("https://host/a?X-Amz-Signature=abc"), "https://host/a?***");
  EXPECT_EQ(without_secrets("zip://x::s3://key:sec@bucket/a.zip"),
            "zip://x::s3://***@bucket/a.zip");
  EXPECT_EQ(without_secrets("s3://bucket/a@b"), "s3://bucket/a@b") << "no name before the bucket";
  EXPECT_EQ(without_secrets("https://a@b@host/c"), "https://***@host/c");
  EXPECT_EQ(without_secrets("/srv/a?b"), "/srv/a?b") << "a folder is no secret";
}

TEST(Url, SecretsAreTakenOutOfOthersWords) {
  const std::string url = "https://anna:pa%2F55@host/a?token=deadbeef&x=longer";
  EXPECT_EQ(without_secrets_of(url, "GET " + url + " failed"), "GET https://***@host/a?*** failed");
  EXPECT_EQ(without_secrets_of(url, "password 'pa%2F55' of anna:pa%2F55 is 'pa/55'"),
            "password '***' of *** is '***'");
  EXPECT_EQ(without_secrets_of(url, "token deadbeef, x longer"), "token ***, x ***");
  EXPECT_EQ(without_secrets_of("s3://bucket/a", "no a in bucket"), "no a in bucket");
}

using std::chrono::seconds;

TEST(Repetitions, TheFirstAreToldAndLaterOnesNowAndThenWithTheNumberBetween) {
  Repetitions events(2, seconds(10));
  const Repetitions::Clock::time_point begin{seconds(1000)};
  EXPECT_EQ(events.next(begin), 0u);
  EXPECT_EQ(events.next(begin), 0u);
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(events.next(begin + seconds(9)), std::nullopt);
  EXPECT_EQ(events.next(begin + seconds(10)), 2000u);
  EXPECT_EQ(events.next(begin + seconds(11)), std::nullopt);
  EXPECT_EQ(events.take_left_out(), 1u);
  EXPECT_EQ(events.take_left_out(), 0u);
  EXPECT_EQ(events.next(begin + seconds(20)), 0u);
}

}  // namespace
}  // namespace bimetal
