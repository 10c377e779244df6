#include "bimetal/monitor/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "bimetal/base/error.h"
#include "support/errors.h"
#include "unit/monitor/some_status.h"

namespace bimetal::monitor {
namespace {

using ::testing::HasSubstr;

ErrorCode code_of_text(std::string_view text) {
  return code_of([&] { parse_status(text); });
}

TEST(Status, SurvivesItsJson) {
  auto status = test::some_status();
  status.workers[1].host = "mac";
  const auto text = to_json(status);
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto back = parse_status(text);
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back.phase, "training");
  EXPECT_EQ(back.steps, 590);
  EXPECT_EQ(back.counts, "tokens");
  EXPECT_EQ(back.notices, status.notices);
  EXPECT_EQ(back.workers[0].bytes_sent, 123456789u);
  EXPECT_EQ(back.workers[0].staleness, 1.5);
  EXPECT_EQ(back.workers[1].staleness, std::nullopt);
  EXPECT_EQ(back.schedule, "1f1b");
  EXPECT_EQ(back.micro_batches, 8);
  EXPECT_EQ(back.workers[0].stage, std::nullopt);
  EXPECT_EQ(back.workers[1].stage, "stage 1 of 2");
}

TEST(Status, TellsWhatIsNotKnownAsNull) {
  Status status;
  status.elapsed_s = std::numeric_limits<double>::quiet_NaN();
  status.workers.resize(1);
  EXPECT_THAT(to_json(status), HasSubstr("\"loss\":null"));
  EXPECT_THAT(to_json(status), HasSubstr("\"wait_part\":null"));
  const auto back = parse_status(to_json(status));
  EXPECT_EQ(back.loss, std::nullopt);
  EXPECT_TRUE(std::isnan(back.elapsed_s));
}

TEST(Status, HostNamesInAnyEncodingAreValidJson) {
  EXPECT_EQ(parse_status(to_json(test::some_status())).workers[1].host,
            "a \"mac\"\\\n\xef\xbf\xbd");
}

TEST(Status, RefusesWhatIsNone) {
  auto text = to_json(test::some_status());
  for (const std::string& strange :
       {std::string(), std::string("[]"), std::string("{}"), std::string("<html>"),
        text.substr(0, text.size() / 2), std::string(100000, '['),
        text.replace(text.find("590"), 3, "\"x\"")}) {
    EXPECT_EQ(code_of_text(strange), ErrorCode::ProtocolMismatch) << strange.substr(0, 80);
  }
}

}  // namespace
}  // namespace bimetal::monitor
