#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/train/replicas.h"
#include "support/errors.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using ::testing::ElementsAre;

constexpr std::array<double, 6> kAlone = {9, 9, 1, 3, 2, 4};

TEST(PartWeights, AreAlikeOnStagesWithEquallyMany) {
  job::MeshConfig mesh;
  mesh.tensor_parts = "speed";
  const parallel::MeshShape shape{.stages = 2, .replicas = 1, .tensor = 3};
  EXPECT_THAT(part_weights(mesh, shape, kAlone),
              ElementsAre(ElementsAre(12, 11, 5), ElementsAre(12, 11, 5)));
  EXPECT_THAT(part_weights(mesh, shape, {}),
              ElementsAre(ElementsAre(1, 1, 1), ElementsAre(1, 1, 1)));
  mesh.tensor_weights = {3, 2, 1};
  EXPECT_THAT(part_weights(mesh, shape, kAlone),
              ElementsAre(ElementsAre(3, 2, 1), ElementsAre(3, 2, 1)));
}

TEST(PartWeights, OfOtherStagesAreTheirOwn) {
  job::MeshConfig mesh;
  mesh.tensor_parts = "speed";
  const parallel::MeshShape shape{.stages = 2, .replicas = 2, .tensor = 2, .parts = {1, 2}};
  EXPECT_THAT(part_weights(mesh, shape, kAlone), ElementsAre(ElementsAre(18), ElementsAre(3, 7)));
  mesh.tensor_parts = "equal";
  mesh.tensor_weights = {2, 1};
  EXPECT_THAT(part_weights(mesh, shape, kAlone), ElementsAre(ElementsAre(1), ElementsAre(2, 1)));
  mesh.tensor_weights = {3, 2, 1};
  expect_error(ErrorCode::InvalidArgument, {"has 3 weights, and stage 1 of 2 has 2 ranks"},
               [&] { part_weights(mesh, shape, {}); });
}

// Before any data is looked for.
TEST(Counts, OfListsAreThoseOfTheRanks) {
  const auto refusal = [](auto change, int ranks) -> std::string {
    job::JobConfig job;
    change(job);
    try {
      require_counts(job, ranks);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
      return error.what();
    }
    return "";
  };
  const auto of_ranks = [](job::JobConfig& job) { job.parallel.weights = {3, 1}; };
  EXPECT_EQ(refusal(of_ranks, 2), "");
  EXPECT_THAT(refusal(of_ranks, 3), HasSubstr("balance has 2 weights for 3 ranks"));
  const auto of_elastic = [](job::JobConfig& job) { job.elastic.min_workers = 3; };
  EXPECT_EQ(refusal(of_elastic, 3), "");
  EXPECT_THAT(refusal(of_elastic, 2),
              HasSubstr("elastic.min_workers = 3, and this job begins with 2: start as many"));
  const auto of_replicas = [](job::JobConfig& job) {
    job.mesh.stages = 2;
    job.mesh.cuts = {1};
    job.zero.weights = job.parallel.weights = {3, 1};
  };
  EXPECT_EQ(refusal(of_replicas, 4), "");
  EXPECT_THAT(refusal(of_replicas, 2), HasSubstr("balance has 2 weights for 1 replicas of a mesh"));
  const auto of_workers = [](job::JobConfig& job) {
    job.mesh.stages = 2;
    job.mesh.stage_replicas = {1, 2};
    job.parallel.weights = {3, 1};
  };
  EXPECT_THAT(refusal(of_workers, 3), HasSubstr("one for each of the 3 workers"));
  const auto of_shards = [](job::JobConfig& job) { job.zero.weights = {3, 1}; };
  EXPECT_THAT(refusal(of_shards, 3), HasSubstr("zero.shards has 2 weights for 3 ranks"));
  const auto of_pieces = [](job::JobConfig& job) {
    job.mesh.stages = 2;
    job.mesh.schedule = "interleaved";
    job.mesh.cuts = {1};
  };
  EXPECT_THAT(refusal(of_pieces, 2), HasSubstr("mesh.cuts has 1 units for 4 pieces"));
}

// Ranks that add up what they compute do so in one precision, and no others have to.
using precision::Precision;
using ::testing::HasSubstr;

/// The message to each of three ranks, of which two have the tensors of stage 1 in parts.
std::array<std::string, 3> refusals_of(const std::array<Precision, 3>& precisions) {
  std::array<std::string, 3> refusals;
  testing::run_ranks(3, [&](int rank, comm::Group group) {
    const parallel::Mesh mesh(std::move(group),
                              {.stages = 2, .replicas = 1, .tensor = 2, .parts = {1, 2}});
    const auto own = static_cast<std::size_t>(rank);
    try {
      require_one_precision(&mesh, precisions[own], Deadline::after(std::chrono::seconds(20)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Unsupported);
      refusals[own] = error.what();
    }
  });
  return refusals;
}

TEST(OnePrecision, IsThatOfAReplicasRanks) {
  for (const auto& refusal :
       refusals_of({Precision::float32, Precision::bfloat16, Precision::bfloat16})) {
    EXPECT_EQ(refusal, "");
  }
  for (const auto& refusal :
       refusals_of({Precision::bfloat16, Precision::bfloat16, Precision::float32})) {
    EXPECT_THAT(refusal, HasSubstr("different precisions"));
  }
}

}  // namespace
}  // namespace bimetal::train
