// Ranks that have a model's tensors in parts, even ones and others, together train it as one device
// would.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>
#include <tuple>
#include <vector>

#include "bimetal/base/error.h"
#include "golden/rows.h"
#include "support/errors.h"

namespace bimetal::golden {
namespace {

using Row = std::tuple<Learnt, Ranks>;

using parallel::tensor::Between;

/// Ranks::shards are the weights of a replica's tensor ranks.
const std::vector<Ranks>& tensor_ranks() {
  static const std::vector<Ranks> all = {
      {"Two", {{24}}, {1, 1}},
      {"TwoUneven", {{24}}, {2, 1}},
      {"ThreeUnevenInMicroBatches", {{24}}, {3, 1, 2}, 5},
      {"TwoReplicasOfTwoUneven", {{17, 7}, {24, 0}, {0, 24}}, {1, 2}},
      {"TwoReplicasOfThreeUneven", {{5, 19}}, {3, 1, 2}, 4},
  };
  return all;
}

TrainingPlan plan_of(const Row& row) {
  auto plan = std::get<0>(row).plan;
  const auto& who = std::get<1>(row);
  plan.shares = who.shares;
  plan.tensor = who.shards;
  plan.micro_batch = who.micro_batch;
  return plan;
}

class InParts : public ::testing::TestWithParam<Row> {};

TEST_P(InParts, TrainsAsOneDevice) {
  const auto& expected = alone(std::get<0>(GetParam()));
  const auto result = train(plan_of(GetParam()));
  expect_same(result, expected);
}

INSTANTIATE_TEST_SUITE_P(Rows, InParts,
                         ::testing::Combine(::testing::ValuesIn(learnt_in_parts()),
                                            ::testing::ValuesIn(tensor_ranks())),
                         row_name<Row>);

/// By replicas that keep shards of each part.
struct Sharded {
  std::string name;
  int level;
  std::vector<std::vector<std::int64_t>> shares;
  std::vector<double> tensor, shards;
  std::int64_t micro_batch = 1000;
};

void PrintTo(const Sharded& shown, std::ostream* out) {
  *out << shown.name;
}

const std::vector<Sharded>& sharded() {
  static const std::vector<Sharded> all = {
      {"One", 1, {{24}}, {2, 1}, {1}},
      {"TwoReplicas", 1, {{17, 7}, {24, 0}, {0, 24}}, {1, 2}, {3, 1}, 5},
      {"ThreeReplicasOneWithout", 1, {{8, 9, 7}, {0, 23, 1}}, {2, 1}, {5, 2, 0}},
      {"TwoReplicasLevel2", 2, {{17, 7}, {24, 0}, {0, 24}}, {1, 2}, {1, 3}},
      {"TwoReplicasOfThreeLevel2", 2, {{5, 19}}, {3, 1, 2}, {2, 1}, 4},
      {"OneLevel3", 3, {{24}}, {2, 1}, {1}, 5},
      {"TwoReplicasLevel3", 3, {{17, 7}, {24, 0}, {0, 24}}, {1, 2}, {1, 3}},
      {"ThreeReplicasLevel3", 3, {{5, 19, 0}}, {2, 1}, {2, 0, 1}, 4},
  };
  return all;
}

/// The same ranks, which have sequences in parts, too: also such as are shorter than there are
/// ranks, in small micro-batches.
class InSequence : public ::testing::TestWithParam<Row> {};

TEST_P(InSequence, TrainsAsOneDevice) {
  const auto& expected = alone(std::get<0>(GetParam()));
  auto plan = plan_of(GetParam());
  plan.between = Between::parts;
  const auto result = train(plan);
  expect_same(result, expected);
}

const std::vector<Ranks>& sequence_ranks() {
  static const std::vector<Ranks> all = {
      {"Two", {{24}}, {1, 1}},
      {"TwoUneven", {{24}}, {2, 1}},
      {"ThreeUnevenOneByOne", {{24}}, {3, 1, 2}, 1},
      {"TwoReplicasOfTwoUneven", {{17, 7}, {24, 0}, {0, 24}}, {1, 2}, 5},
      {"TwoReplicasOfThreeUneven", {{5, 19}}, {3, 1, 2}, 4},
  };
  return all;
}

using ShardedRow = std::tuple<Learnt, Sharded>;

class InShardsOfParts : public ::testing::TestWithParam<ShardedRow> {};

TrainingPlan in_shards_of_parts(const Learnt& what, const Sharded& who) {
  auto plan = what.plan;
  plan.shares = who.shares;
  plan.tensor = who.tensor;
  plan.zero_level = who.level;
  plan.shards = who.shards;
  plan.micro_batch = who.micro_batch;
  return plan;
}

TEST_P(InShardsOfParts, TrainsAsOneDevice) {
  const auto& [what, who] = GetParam();
  expect_same(train(in_shards_of_parts(what, who)), alone(what));
}

TEST(InShardsOfParts, AreUpdatedInBackward) {
  for (const auto& who : sharded()) {
    if (who.level < 3) continue;
    const Learnt what{"Gpt2DropoutAdamW",
                      {.learns = Learns::gpt2,
                       .dropout = 0.1,
                       .optimizer = Optimizer::adamw,
                       .steps = 6,
                       .recompute = "all"}};
    auto plan = in_shards_of_parts(what, who);
    plan.update_in_backward = true;
    expect_same(train(plan), alone(what));
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, InShardsOfParts,
                         ::testing::Combine(::testing::ValuesIn(learnt_in_parts()),
                                            ::testing::ValuesIn(sharded())),
                         row_name<ShardedRow>);

INSTANTIATE_TEST_SUITE_P(Rows, InSequence,
                         ::testing::Combine(::testing::ValuesIn(learnt_in_parts()),
                                            ::testing::ValuesIn(sequence_ranks())),
                         row_name<Row>);

// The rows must be able to fail: clipping and dropout move parameters far more than the tolerance.
TEST(InParts, WhatIsTrainedShows) {
  const auto& plain = alone(learnt_in_parts()[3]).parameters;
  EXPECT_GT(largest_difference(alone(learnt_in_parts()[4]).parameters, plain), 1e-4);
}

TEST(InParts, WhatCannotBeInThemIsRefused) {
  expect_error(ErrorCode::InvalidArgument, {"take mesh.tensor = 2 or less"}, [] {
    train({.learns = Learns::llama, .shares = {{24}}, .steps = 1, .tensor = {1, 1, 1}});
  });
  expect_error(ErrorCode::Unsupported, {}, [] {
    train({.shares = {{24}}, .steps = 1, .tensor = {1, 1}});
  });
}

}  // namespace
}  // namespace bimetal::golden
