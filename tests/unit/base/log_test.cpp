#include "bimetal/base/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal {
namespace {

class Log : public ::testing::Test {
 protected:
  ~Log() override { set_log_sink({}); }
};

TEST_F(Log, NothingIsFormattedWithoutASink) {
  set_log_sink({});
  EXPECT_FALSE(log_enabled(LogLevel::error));
}

TEST_F(Log, SinkGetsMessagesOfItsLevelAndAbove) {
  std::vector<std::string> seen;
  set_log_sink([&](LogLevel, std::string_view text) { seen.emplace_back(text); },
               LogLevel::warning);
  log(LogLevel::info, "quiet {}", 1);
  log(LogLevel::warning, "loud {}", 2);
  EXPECT_EQ(seen, std::vector<std::string>{"loud 2"});
}

TEST_F(Log, LevelIsReadFromTheEnvironment) {
  const auto level = [](const char* value) {
    ::setenv("BIMETAL_DEBUG", value, 1);
    return log_level_from_environment();
  };
  EXPECT_EQ(level("info"), LogLevel::info);
  EXPECT_EQ(level("INFO"), LogLevel::info);
  EXPECT_EQ(level("trace"), LogLevel::trace);
  EXPECT_EQ(level("DETAIL"), LogLevel::trace);
  EXPECT_EQ(level("off"), std::nullopt);
  EXPECT_EQ(level(""), std::nullopt);
  EXPECT_THROW(level("loud"), Error);
  ::unsetenv("BIMETAL_DEBUG");
  EXPECT_EQ(log_level_from_environment(), std::nullopt);
}

TEST_F(Log, SinkMayReplaceItself) {
  int calls = 0;
  set_log_sink([&](LogLevel, std::string_view) {
    ++calls;
    set_log_sink({});
  });
  log(LogLevel::error, "first");
  log(LogLevel::error, "second");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace bimetal
