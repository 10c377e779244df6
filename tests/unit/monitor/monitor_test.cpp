#include "bimetal/monitor/monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bimetal/base/error.h"
#include "bimetal/monitor/http_client.h"
#include "bimetal/monitor/monitor_token.h"

namespace bimetal::monitor {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::string fetch(const Monitor& monitor, const char* path, const net::Token& token = {}) {
  return fetch_page({"127.0.0.1", monitor.endpoint().value().port}, path, token,
                    Deadline::after(30s));
}

TEST(Monitor, ShowsWhatItIsTold) {
  Monitor monitor({.listen = net::Endpoint{"127.0.0.1", 0}});
  monitor.on_phase("training");
  monitor.on_workers({{"pc", "cpu"}});
  monitor.on_step({.epoch = 1, .step = 7, .steps = 9, .samples_per_s = 100, .shares = {64}});
  monitor.on_evaluated(1, {.loss = 1.5, .metrics = {{"accuracy", 0.5}}});
  monitor.on_notice("a note");
  const auto status = parse_status(fetch(monitor, kStatusPath));
  EXPECT_EQ(status.step, 7);
  EXPECT_EQ(status.phase, "training");
  EXPECT_EQ(status.test_loss, 1.5);
  EXPECT_EQ(status.notices, std::vector<std::string>{"a note"});
  EXPECT_EQ(status.workers.at(0).host, "pc");
  EXPECT_THAT(fetch(monitor, kMetricsPath), HasSubstr("\nbimetal_steps_total 7\n"));
  EXPECT_THAT(fetch(monitor, "/"), HasSubstr("/metrics"));
}

TEST(Monitor, ListensNowhereUnlessAsked) {
  Monitor monitor({});
  monitor.on_step({.step = 1});
  EXPECT_FALSE(monitor.endpoint());
}

TEST(Monitor, BeyondLoopbackItAsksForATokenThatIsNotTheJobs) {
  const auto job = net::Token::generate();
  EXPECT_THROW(Monitor({.listen = net::Endpoint{"0.0.0.0", 0}}), Error);
  const Monitor monitor({.listen = net::Endpoint{"0.0.0.0", 0}, .job_token = job});
  EXPECT_THAT(fetch(monitor, kMetricsPath, monitor_token(job)), HasSubstr("bimetal_build_info"));
  EXPECT_THROW(fetch(monitor, kMetricsPath, job), Error);
  EXPECT_THROW(fetch(monitor, kMetricsPath), Error);
}

TEST(Monitor, OnLoopbackItAsksForNone) {
  const Monitor monitor(
      {.listen = net::Endpoint{"localhost", 0}, .job_token = net::Token::generate()});
  EXPECT_THAT(fetch(monitor, kMetricsPath), HasSubstr("bimetal_build_info"));
}

}  // namespace
}  // namespace bimetal::monitor
