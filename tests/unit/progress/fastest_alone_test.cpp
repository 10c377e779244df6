#include "bimetal/progress/fastest_alone.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::progress {
namespace {

using testing::HasSubstr;
using testing::Not;

/// 100 s of two workers that do 1,000 and 250 samples/s alone.
Report report_of(double samples_per_s, double wait_0, double wait_1) {
  Report report{.world_size = 2, .elapsed_s = 100, .samples_per_s = samples_per_s};
  report.workers.push_back({.rank = 0, .share = 0.8, .samples = 80, .samples_per_s_alone = 1000});
  report.workers.push_back({.rank = 1, .share = 0.2, .samples = 20, .samples_per_s_alone = 250});
  report.workers[0].wait_s = wait_0;
  report.workers[1].wait_s = wait_1;
  for (auto& worker : report.workers) worker.compute_s = 99 - worker.wait_s;
  return report;
}

TEST(FastestAlone, IsOfJobsOfSeveralWorkersOnly) {
  auto report = report_of(1200, 1, 1);
  EXPECT_EQ(fastest_alone(report)->rank, 0);
  EXPECT_DOUBLE_EQ(fastest_alone(report)->job_relative, 1.2);
  report.workers.pop_back();
  EXPECT_FALSE(fastest_alone(report));
  EXPECT_FALSE(fastest_alone(Report{}));
}

TEST(FastestAlone, NamesTheRankThatAllWaitFor) {
  const auto time = fastest_alone(report_of(880, 30, 2))->time;
  EXPECT_THAT(time, HasSubstr("computed for 69 %"));
  EXPECT_THAT(time, HasSubstr("waited for 30 %, most of all for rank 1 with its 20 %"));
}

TEST(FastestAlone, BlamesNobodyWhereAllWait) {
  const auto time = fastest_alone(report_of(700, 40, 38))->time;
  EXPECT_THAT(time, HasSubstr("waited for 40 %, as all did: for each other in turn"));
}

TEST(FastestAlone, TellsOfIdleRanksAndOfSharesThatDoNotFollow) {
  auto report = report_of(900, 1, 1);
  EXPECT_THAT(fastest_alone(report)->time, Not(HasSubstr("had no samples")));
  report.history = {{.shares = {256, 0}}, {.shares = {216, 40}}};
  EXPECT_THAT(fastest_alone(report)->time, HasSubstr("rank 1 had no samples in 50 % of the steps"));
  report.balance = BalanceRecord{.policy = "equal"};
  EXPECT_THAT(fastest_alone(report)->time, HasSubstr("shares were equal by the job's"));
}

}  // namespace
}  // namespace bimetal::progress
