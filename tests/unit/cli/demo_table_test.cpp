#include "bimetal/cli/demo/demo_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bimetal::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string printed(const DemoFigures& figures) {
  ::testing::internal::CaptureStdout();
  {
    Terminal terminal;
    print_demo_table(terminal, figures);
  }
  return ::testing::internal::GetCapturedStdout();
}

/// The figures of two workers that do 1,000 and 250 images/s alone, and `together` when balanced.
DemoFigures figures_of(double together) {
  DemoFigures figures;
  figures.workers = {"cpu:threads=1", "cpu:threads=1,speed=0.25"};
  figures.alone.resize(2);
  figures.alone[0].samples_per_s = 1000;
  figures.alone[1].samples_per_s = 250;
  figures.equal.samples_per_s = 490;
  figures.balanced.samples_per_s = together;
  figures.balanced.fastest_rank = 0;
  figures.balanced.fastest_time = "it computed for 60 % of the time";
  return figures;
}

TEST(DemoTable, SaysWhereTogetherWasSlowerThanTheFastestAlone) {
  const auto text = printed(figures_of(900));
  EXPECT_THAT(text, HasSubstr("note: together they were slower than the fastest worker alone, "
                              "0.90 × what it did by itself"));
  EXPECT_THAT(text, HasSubstr("figures of rank 0, it computed for 60 % of the time."));
}

TEST(DemoTable, SaysNothingOfItWhereTogetherWasFaster) {
  const auto text = printed(figures_of(1100));
  EXPECT_THAT(text, Not(HasSubstr("note:")));
  EXPECT_THAT(text, HasSubstr("1.10 ×"));
  EXPECT_THAT(text, HasSubstr("88 %"));
}

}  // namespace
}  // namespace bimetal::cli
