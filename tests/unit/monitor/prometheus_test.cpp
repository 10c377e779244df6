#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>
#include <set>
#include <sstream>

#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/monitor/status.h"
#include "support/errors.h"
#include "support/temporary_folder.h"
#include "unit/monitor/some_status.h"

namespace bimetal::monitor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBefore = fmt::format(
    "# HELP bimetal_build_info The version that the job runs.\n"
    "# TYPE bimetal_build_info gauge\n"
    "bimetal_build_info{{version=\"{}\"}} 1\n"
    "# HELP bimetal_start_time_seconds When rank 0 started, in Unix time.\n"
    "# TYPE bimetal_start_time_seconds gauge\n"
    "bimetal_start_time_seconds 1700000000.5\n",
    release());

TEST(Prometheus, BeforeTheFirstStepThereIsTheJobAlone) {
  EXPECT_EQ(to_prometheus({.started_at = 1700000000.5}), kBefore);
}

TEST(Prometheus, WhatIsNotKnownIsLeftOut) {
  auto status = test::some_status();
  status.test_metrics.clear();
  status.validation_loss.reset();
  status.workers[0].staleness.reset();
  const auto text = to_prometheus(status);
  EXPECT_THAT(text, Not(HasSubstr("test_accuracy")));
  EXPECT_THAT(text, Not(HasSubstr("validation")));
  EXPECT_THAT(text, Not(HasSubstr("staleness_updates{rank=\"1\"")));
  EXPECT_THAT(text, Not(HasSubstr("bimetal_worker_staleness_updates")));
}

TEST(Prometheus, NumbersThatAreNoneAreWrittenAsGoWritesThem) {
  auto status = test::some_status();
  status.loss = std::numeric_limits<double>::quiet_NaN();
  status.seconds_left = std::numeric_limits<double>::infinity();
  EXPECT_THAT(to_prometheus(status), HasSubstr("\nbimetal_loss NaN\n"));
  EXPECT_THAT(to_prometheus(status), HasSubstr("\nbimetal_remaining_seconds +Inf\n"));
}

// The format's demands on every line, and the promises of docs/monitoring.md.
TEST(Prometheus, EveryLineIsWellFormedAndDocumented) {
  const std::regex help("# HELP (bimetal_[a-z_]+) [A-Z].*\\."),
      type("# TYPE (bimetal_[a-z_]+) (gauge|counter)");
  const std::regex sample(
      R"((bimetal_[a-z_]+)(\{[a-z]+="([^"\\\n]|\\["\\n])*"(,[a-z]+="([^"\\\n]|\\["\\n])*")*\})? (\S+))");
  const auto docs = ::bimetal::test::contents_of(BIMETAL_SOURCE_DIR "/docs/monitoring.md");
  std::istringstream lines(to_prometheus(test::some_status()));
  std::set<std::string> helped, typed, seen;
  std::string last, line;
  while (std::getline(lines, line)) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      EXPECT_TRUE(helped.insert(match[1]).second) << line;
    } else if (std::regex_match(line, match, type)) {
      EXPECT_TRUE(typed.insert(match[1]).second) << line;
      EXPECT_EQ(match[2] == "counter", match[1].str().ends_with("_total")) << line;
      EXPECT_THAT(docs, HasSubstr(fmt::format("| `{}` |", match[1].str())));
    } else {
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      EXPECT_TRUE(helped.contains(match[1]) && typed.contains(match[1])) << line;
      // All samples of a metric stand together.
      EXPECT_TRUE(match[1] == last || seen.insert(match[1]).second) << line;
      last = match[1];
    }
  }
  EXPECT_EQ(helped, seen);
}

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
