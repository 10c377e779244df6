#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <mutex>
#include <string>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/net/mesh.h"
#include "bimetal/train/libtorch_state.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Notices final : public progress::Observer {
 public:
  void on_notice(const std::string& text) override { texts.push_back(text); }
  std::vector<std::string> texts;
};

job::JobConfig relaxed() {
  job::JobConfig job;
  job.parallel.exact = "relaxed";
  return job;
}

TEST(RandomStates, ARelaxedJobDrawsApartAndAlikeInEveryRun) {
  const auto drawn = [](std::int64_t step) {
    auto group = comm::make_group(net::make_solo_mesh("here"), {});
    DrawsApart(relaxed(), std::move(group)).begin(step);
    return torch::rand({4});
  };
  EXPECT_TRUE(drawn(5).equal(drawn(5)));
  EXPECT_FALSE(drawn(5).equal(drawn(6)));
}

// The ranks are threads, whose generator is one: they are alike whatever is done.
TEST(RandomStates, RanksThatDrawAlikeAreNamedOnce) {
  const auto job = relaxed();
  std::mutex writing;
  std::vector<std::vector<std::string>> told;
  bimetal::testing::run_ranks(2, [&](int, comm::Group group) {
    DrawsApart apart(job, group);
    Notices notices;
    apart.look(notices);
    apart.look(notices);
    const std::scoped_lock lock(writing);
    told.push_back(notices.texts);
  });
  EXPECT_THAT(told, ::testing::Each(ElementsAre(HasSubstr("ranks 0 and 1 draw the same"))));
}

TEST(RandomStates, StrictJobsAreLeftAlone) {
  const job::JobConfig job;
  torch::manual_seed(11);
  const auto expected = torch::rand({4});
  torch::manual_seed(11);
  bimetal::testing::run_ranks(2, [&](int, comm::Group group) {
    DrawsApart apart(job, group);
    Notices notices;
    apart.begin(3);
    apart.look(notices);
    EXPECT_THAT(notices.texts, ElementsAre());
  });
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

/// put_() has no deterministic kernel on any device.
std::string error_of_put() {
  auto x = torch::zeros({4});
  try {
    x.put_(torch::tensor({1, 1}), torch::tensor({1.0f, 2.0f}));
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(KernelChoice, DeterministicJobsRefuseOperationsByName) {
  job::JobConfig job;
  {
    const KernelChoice off(job, 1);
    EXPECT_EQ(error_of_put(), "no error");
  }
  job.train.deterministic = true;
  {
    const KernelChoice on(job, 1);
    const auto refused = nondeterministic_operation(error_of_put());
    ASSERT_TRUE(refused.has_value());
    EXPECT_THAT(*refused, HasSubstr("'put_' has no deterministic kernel"));
    EXPECT_THAT(*refused, HasSubstr("train.deterministic = false"));
  }
  EXPECT_EQ(error_of_put(), "no error") << "it is over";
  EXPECT_EQ(nondeterministic_operation("something else went wrong"), std::nullopt);
}

bool measures(const job::JobConfig& job, int ranks) {
  const KernelChoice choice(job, ranks);
  return at::globalContext().benchmarkCuDNN();
}

TEST(KernelChoice, CudnnMeasuresWhereShapesStay) {
  job::JobConfig job;
  EXPECT_TRUE(measures(job, 1));
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN()) << "it is over";
  EXPECT_FALSE(measures(job, 2)) << "shares change";
  job.elastic.min_workers = 1;
  EXPECT_FALSE(measures(job, 1)) << "others may come";
  job.parallel.balance = balance::Policy::Equal;
  EXPECT_TRUE(measures(job, 2));
  job.train.deterministic = true;
  EXPECT_FALSE(measures(job, 2));
  at::globalContext().setBenchmarkCuDNN(true);
  EXPECT_FALSE(measures(job, 2));
  EXPECT_TRUE(at::globalContext().benchmarkCuDNN()) << "as it was";
  at::globalContext().setBenchmarkCuDNN(false);
}

TEST(KernelChoice, DeterministicJobsRefuseWhatMeasuredTimesDecide) {
  job::JobConfig job;
  job.train.deterministic = true;
  EXPECT_NO_THROW(require_deterministic(job, 1));
  EXPECT_THROW(require_deterministic(job, 2), Error);
  job.parallel.balance = balance::Policy::Equal;
  EXPECT_NO_THROW(require_deterministic(job, 2));
  for (auto* const key : {&job.train.precision, &job.train.memory_format}) {
    const auto before = std::exchange(*key, "auto");
    EXPECT_THROW(require_deterministic(job, 1), Error);
    *key = before;
  }
  job.parallel.mode = "server";
  EXPECT_THROW(require_deterministic(job, 1), Error);
  job.train.deterministic = false;
  EXPECT_NO_THROW(require_deterministic(job, 1));
}

}  // namespace
}  // namespace bimetal::train
