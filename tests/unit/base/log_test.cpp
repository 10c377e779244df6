#include "bimetal/base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  set_log_sink([&](LogLevel, std::string_view text) { seen.emplace_back(text); }, LogLevel::warning);
  log(LogLevel::info, "quiet {}", 1);
  log(LogLevel::warning, "loud {}", 2);
  EXPECT_EQ(seen, std::vector<std::string>{"loud 2"});
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
