#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/job_keys.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::job {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

struct Setting {
  std::string key, on_rank_0, on_rank_1;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.key;
}

/// The message to each rank whose job differs from rank 0's; empty: none.
std::vector<std::string> compare(const Setting& setting) {
  std::vector<std::string> told(2);
  bimetal::testing::run_ranks(2, [&](int rank, comm::Group group) {
    const auto& value = rank == 0 ? setting.on_rank_0 : setting.on_rank_1;
    try {
      require_same_job(group, parse_job("", "job.toml", {setting.key + "=" + value}), 10s);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::CallMismatch) << error.what();
      EXPECT_EQ(error.rank(), 1);
      told[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return told;
}

class MustBeAlike : public ::testing::TestWithParam<Setting> {};
class MayDiffer : public ::testing::TestWithParam<Setting> {};

TEST_P(MustBeAlike, EveryRankIsToldOfTheKeyAndBothValues) {
  const auto& setting = GetParam();
  const auto expected = setting.key + " is '" + setting.on_rank_1 + "' on rank 1 but '" +
                        setting.on_rank_0 + "' on rank 0";
  EXPECT_THAT(compare(setting), ::testing::Each(HasSubstr(expected)));
}

TEST_P(MayDiffer, NobodyMinds) {
  EXPECT_THAT(compare(GetParam()), ::testing::Each(""));
}

INSTANTIATE_TEST_SUITE_P(SameJob, MustBeAlike,
                         ::testing::Values(Setting{"train.global_batch", "32", "48"},
                                           Setting{"train.optimizer", "adam", "lamb"},
                                           Setting{"train.learning_rate", "0.5", "1.0"},
                                           Setting{"parallel.balance", "auto", "equal"},
                                           Setting{"parallel.balance", "[1, 1]", "[3, 1]"},
                                           Setting{"servers.count", "[1, 1]", "[3, 1]"},
                                           Setting{"servers.replicas", "1", "2"},
                                           Setting{"compression.links", "all", "between_islands"},
                                           Setting{"compression.activations", "none", "int8"},
                                           Setting{"fabric.islands", "auto", "off"}));

INSTANTIATE_TEST_SUITE_P(SameJob, MayDiffer,
                         ::testing::Values(Setting{"data.path", "/here", "/there"},
                                           Setting{"train.micro_batch", "8", "64"},
                                           Setting{"checkpoint.keep", "1", "9"},
                                           Setting{"monitor.listen", "", "127.0.0.1:0"}));

TEST(SameFacts, AreComparedOneByOne) {
  bimetal::testing::run_ranks(3, [](int rank, comm::Group group) {
    const std::vector<std::string> alike = {"samples = 5", "digest 12"};
    EXPECT_NO_THROW(require_same_facts(group, alike, 10s));
    auto other = alike;
    if (rank == 2) other[1] = "digest 13";
    EXPECT_EQ(expect_error(ErrorCode::CallMismatch,
                           {"rank 2 has 'digest 13', and rank 0 has 'digest 12'"},
                           [&] { require_same_facts(group, other, 10s); })
                  .rank(),
              2);
  });
}

}  // namespace
}  // namespace bimetal::job
