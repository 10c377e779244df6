#include "bimetal/monitor/prometheus.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>
#include <set>
#include <sstream>

#include "bimetal/base/release.h"
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

TEST(Prometheus, EveryFigureHasItsLine) {
  const auto text = to_prometheus(test::some_status());
  EXPECT_TRUE(text.starts_with(kBefore));
  for (const char* lines :
       {"\n# HELP bimetal_steps_total Optimizer steps done, those before a resume included.\n"
        "# TYPE bimetal_steps_total counter\nbimetal_steps_total 340\n",
        "\n# HELP bimetal_loss Mean loss over the last step's global batch.\n"
        "# TYPE bimetal_loss gauge\nbimetal_loss 0.412\n",
        "\nbimetal_pipeline_info{schedule=\"1f1b\"} 1\n", "\nbimetal_micro_batches 8\n",
        "\nbimetal_samples_per_second 8412\n", "\nbimetal_test_accuracy_ratio 0.875\n",
        "\n# HELP bimetal_test_accuracy_ratio Test accuracy at the last evaluation.\n",
        "\nbimetal_test_perplexity 12.5\n", "\nbimetal_validation_accuracy_ratio 0.75\n",
        "\n# HELP bimetal_validation_loss Validation loss at the last evaluation.\n",
        "\n# TYPE bimetal_worker_share_samples gauge\n"
        "bimetal_worker_share_samples{rank=\"0\",host=\"pc\",device=\"cuda:0\"} 410\n"
        "bimetal_worker_share_samples{rank=\"1\",host=\"a \\\"mac\\\"\\\\\\n?\",device=\"mps\","
        "stage=\"stage 1 of 2\"} 102\n"
        "#",
        "\n# TYPE bimetal_worker_sent_bytes_total counter\n"
        "bimetal_worker_sent_bytes_total{rank=\"0\",host=\"pc\",device=\"cuda:0\"} 123456789\n#",
        "\nbimetal_worker_wait_ratio{rank=\"0\",host=\"pc\",device=\"cuda:0\"} 0.03125\n",
        "\nbimetal_worker_staleness_updates{rank=\"0\",host=\"pc\",device=\"cuda:0\"} 1.5\n",
        "\nbimetal_worker_max_staleness_updates{rank=\"0\",host=\"pc\",device=\"cuda:0\"} 4\n"}) {
    EXPECT_THAT(text, HasSubstr(lines));
  }
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

// What the format's description demands of every line, and what docs/monitoring.md promises.
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

}  // namespace
}  // namespace bimetal::monitor
