#include "bimetal/base/url.h"

#include <gtest/gtest.h>

namespace bimetal {
namespace {

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

}  // namespace
}  // namespace bimetal
