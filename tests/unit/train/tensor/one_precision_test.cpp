// Ranks that add up what they compute do so in one precision, and no others have to.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/train/replicas.h"
#include "support/thread_ranks.h"

namespace bimetal::train {
namespace {

using precision::Precision;
using ::testing::HasSubstr;

/// What each of three ranks is told, of which two have the tensors of stage 1 in parts.
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
