#include "bimetal/net/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::net {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";

class TokenFile : public ::testing::Test {
 protected:
  TokenFile() : folder_(fs::temp_directory_path() / fs::path("bimetal_token_" + unique())) {
    fs::create_directory(folder_);
  }
  ~TokenFile() override {
    fs::remove_all(folder_);
    ::unsetenv("BIMETAL_TOKEN_FILE");
    ::unsetenv("BIMETAL_TOKEN");
  }

  fs::path write(const std::string& content, fs::perms mode = fs::perms::owner_read) {
    const fs::path path = folder_ / "token";
    std::ofstream(path) << content;
    fs::permissions(path, mode);
    return path;
  }

  static std::string unique() { return std::to_string(std::random_device{}()); }

  fs::path folder_;
};

std::string failure_of(const fs::path& path, ErrorCode code) {
  return text_of(code, [&] { Token::from_file(path); });
}

TEST(Token, GeneratesDifferentSecretsOf256Bits) {
  const Token a = Token::generate();
  EXPECT_EQ(a.text().size(), 64u);
  EXPECT_EQ(a.text().find_first_not_of("0123456789abcdef"), std::string_view::npos);
  EXPECT_NE(a.text(), Token::generate().text());
}

TEST(Token, CopiesAreEqualAndIndependent) {
  Token a = Token::from_text(kSecret);
  Token b;
  EXPECT_TRUE(b.empty());
  b = a;
  a = Token();
  EXPECT_EQ(b.text(), kSecret);
  EXPECT_TRUE(a.empty());
}

TEST_F(TokenFile, TakesTheFirstLineWithoutBlanks) {
  EXPECT_EQ(Token::from_file(write(std::string(kSecret) + "  \r\nmore\n")).text(), kSecret);
}

// As Notepad and PowerShell 5 write it.
TEST_F(TokenFile, TakesTheMarkOfUtf8ForNoPartOfIt) {
  EXPECT_EQ(Token::from_file(write("\xEF\xBB\xBF" + std::string(kSecret) + "\r\n")).text(),
            kSecret);
}

// As PowerShell's > writes it.
TEST_F(TokenFile, RefusesUtf16AndSaysHowToWriteIt) {
  for (const bool little : {true, false}) {
    std::string content = little ? "\xFF\xFE" : "\xFE\xFF";
    for (const char c : std::string(kSecret) + "\r\n") {
      content += little ? std::string{c, '\0'} : std::string{'\0', c};
    }
    const auto path = write(content);
    const auto message = failure_of(path, ErrorCode::InvalidArgument);
    EXPECT_THAT(message, HasSubstr("is in UTF-16"));
    EXPECT_THAT(message, HasSubstr("bimetal token FILE"));
    fs::remove(path);
  }
}

TEST_F(TokenFile, RefusesWhatOthersCanRead) {
  for (const auto bit : {fs::perms::group_read, fs::perms::others_read, fs::perms::group_write}) {
    const auto path = write(kSecret, fs::perms::owner_read | fs::perms::owner_write | bit);
    const std::string message = failure_of(path, ErrorCode::InvalidArgument);
    EXPECT_THAT(message, HasSubstr("chmod 600 " + path.string()));
    EXPECT_THAT(message, testing::Not(HasSubstr(kSecret)));
    fs::remove(path);
  }
}

TEST_F(TokenFile, RefusesShortAndEmptyOnes) {
  EXPECT_THAT(failure_of(write("fifteen letters"), ErrorCode::InvalidArgument),
              HasSubstr("at least 16"));
  fs::remove(folder_ / "token");
  failure_of(write(""), ErrorCode::InvalidArgument);
}

TEST_F(TokenFile, MissingFileIsASystemError) {
  EXPECT_THAT(failure_of(folder_ / "absent", ErrorCode::System), HasSubstr("absent"));
}

TEST_F(TokenFile, EnvironmentPrefersTheFile) {
  EXPECT_TRUE(Token::from_environment().empty());
  ::setenv("BIMETAL_TOKEN", "from the variable itself", 1);
  EXPECT_EQ(Token::from_environment().text(), "from the variable itself");
  ::setenv("BIMETAL_TOKEN_FILE", write(kSecret).c_str(), 1);
  EXPECT_EQ(Token::from_environment().text(), kSecret);
}

TEST_F(TokenFile, VariableIsNoShorterThanAFile) {
  ::setenv("BIMETAL_TOKEN", "fifteen letters", 1);
  try {
    Token::from_environment();
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("BIMETAL_TOKEN has 15 characters"));
    EXPECT_THAT(error.what(), HasSubstr("bimetal token FILE"));
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("fifteen letters")));
  }
}

TEST_F(TokenFile, MayNotBeAnythingThatLiesAround) {
  EXPECT_EQ(Token::from_file(write(std::string(4095, 'x') + "\nmore\n")).text().size(), 4095u);
  fs::remove(folder_ / "token");
  EXPECT_THAT(failure_of(write(std::string(5'000'000, 'x')), ErrorCode::InvalidArgument),
              HasSubstr("has more than 4095 characters"));
  ::setenv("BIMETAL_TOKEN", std::string(5000, 'x').c_str(), 1);
  EXPECT_THROW(Token::from_environment(), Error);
}

TEST(Token, AHostThatNobodyKnowsIsCalledThat) {
  expect_error(ErrorCode::System, {"no-such-host.invalid"},
               [&] { require_token_for("no-such-host.invalid", Token()); });
}

TEST(Token, NothingListensBeyondLoopbackWithoutOne) {
  EXPECT_NO_THROW(require_token_for("127.0.0.1", Token()));
  EXPECT_NO_THROW(require_token_for("0.0.0.0", Token::from_text(kSecret)));
  for (const char* host : {"0.0.0.0", "::", "10.0.0.2"}) {
    expect_error(ErrorCode::Unauthorized, {"--token-file"},
                 [&] { require_token_for(host, Token()); });
  }
}

}  // namespace
}  // namespace bimetal::net
