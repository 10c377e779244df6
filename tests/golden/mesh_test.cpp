// A model in stages whose tensors are in parts, even ones and others, is trained as one device
// would have done.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>
#include <tuple>
#include <vector>

#include "golden/rows.h"

namespace bimetal::golden {
namespace {

using parallel::schedule::Kind;

struct Shape {
  std::string name;
  int stages;
  std::vector<double> tensor;
  Kind schedule;
  std::vector<std::vector<std::int64_t>> shares = {{24}};  ///< by replica
  std::int64_t micro_batches = 4;
  int chunks = 1;
  int level = 0;
  std::vector<double> shards = {};  ///< above level 0: weights of the replicas'
  Cuts cuts = Cuts::late;
};

void PrintTo(const Shape& shown, std::ostream* out) {
  *out << shown.name;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"TwoByTwoGpipe", 2, {1, 1}, Kind::gpipe},
      {"TwoByTwoUneven1f1b", 2, {2, 1}, Kind::one_f_one_b, {{24}}, 5},
      {"TwoByTwoUnevenZeroBubble", 2, {1, 2}, Kind::zero_bubble, {{24}}, 5},
      {"TwoByTwoInterleaved", 2, {1, 1}, Kind::interleaved, {{24}}, 4, 2},
      {"TwoByThreeUnevenGpipe", 2, {3, 1, 2}, Kind::gpipe},
      {"ThreeByTwoUneven1f1b", 3, {2, 1}, Kind::one_f_one_b, {{24}}, 0},
      {"TwoReplicasOfTwoByTwoGpipe", 2, {2, 1}, Kind::gpipe, {{17, 7}, {24, 0}, {1, 23}}},
      {"TwoReplicasOfTwoByTwo1f1b", 2, {1, 1}, Kind::one_f_one_b, {{17, 7}, {0, 24}}},
      {"TwoReplicasOfTwoByTwoZeroBubble", 2, {1, 2}, Kind::zero_bubble, {{5, 19}}},
      {"Level1", 2, {2, 1}, Kind::one_f_one_b, {{17, 7}, {24, 0}}, 5, 1, 1, {3, 1}},
      {"Level1ZeroBubble", 2, {1, 2}, Kind::zero_bubble, {{5, 19}}, 4, 1, 1, {0, 1}},
      {"Level1Interleaved", 2, {1, 1}, Kind::interleaved, {{17, 7}}, 4, 2, 1, {1, 2}},
      {"Level2", 2, {1, 2}, Kind::one_f_one_b, {{17, 7}, {0, 24}}, 4, 1, 2, {1, 3}},
      {"Level2ZeroBubble", 2, {2, 1}, Kind::zero_bubble, {{5, 19}}, 4, 1, 2, {2, 1}},
      {"Level3", 2, {1, 2}, Kind::one_f_one_b, {{17, 7}, {0, 24}}, 4, 1, 3, {1, 3}},
      {"Level3ZeroBubble", 2, {2, 1}, Kind::zero_bubble, {{5, 19}}, 4, 1, 3, {2, 1}},
      {"TwoByTwoEarly1f1b", 2, {1, 2}, Kind::one_f_one_b, {{24}}, 5, 1, 0, {}, Cuts::early},
      {"Level2EarlyGpipe", 2, {2, 1}, Kind::gpipe, {{17, 7}}, 4, 1, 2, {1, 3}, Cuts::early},
  };
  return all;
}

/// Meshes that take many ranks: tensors in three parts, or replicas in shards on three stages.
const std::vector<Shape>& large_shapes() {
  static const std::vector<Shape> all = {
      {"TwoByThreeLevel1", 2, {3, 1, 2}, Kind::one_f_one_b, {{17, 7}}, 4, 1, 1, {3, 1}},
      {"TwoByThreeLevel2ZeroBubble", 2, {1, 1, 2}, Kind::zero_bubble, {{5, 19}}, 4, 1, 2, {1, 2}},
      {"TwoByThreeInterleaved", 2, {2, 1, 1}, Kind::interleaved, {{24}}, 4, 2},
      {"ThreeByTwoLevel1", 3, {2, 1}, Kind::one_f_one_b, {{7, 17}, {24, 0}}, 5, 1, 1, {1, 3}},
      {"ThreeByTwoLevel3Gpipe", 3, {1, 2}, Kind::gpipe, {{17, 7}}, 3, 1, 3, {2, 1}},
      {"TwoByThreeLevel3", 2, {2, 1, 1}, Kind::one_f_one_b, {{17, 7}}, 3, 1, 3, {1, 2}},
      {"Level1Gpipe", 2, {1, 2}, Kind::gpipe, {{9, 15}}, 4, 1, 1, {2, 1}},
      {"ThreeByThree1f1b", 3, {2, 1, 1}, Kind::one_f_one_b, {{24}}, 5},
      {"ThreeByThreeEarlyZeroBubble",
       3,
       {1, 1, 2},
       Kind::zero_bubble,
       {{24}},
       4,
       1,
       0,
       {},
       Cuts::early},
  };
  return all;
}

using Row = std::tuple<Learnt, Shape>;

TrainingPlan plan_of(const Row& row) {
  const auto& [what, how] = row;
  auto plan = what.plan;
  plan.shares = how.shares;
  plan.mesh = {.stages = how.stages, .replicas = static_cast<int>(how.shares.front().size())};
  plan.tensor = how.tensor;
  plan.schedule = how.schedule;
  plan.chunks = how.chunks;
  plan.cuts = cuts_of(plan, how.cuts);
  plan.micro_batches = how.micro_batches;
  plan.zero_level = how.level;
  plan.shards = how.shards;
  return plan;
}

class InMesh : public ::testing::TestWithParam<Row> {};

TEST_P(InMesh, TrainsAsOneDevice) {
  const auto& expected = alone(std::get<0>(GetParam()));
  const auto result = train(plan_of(GetParam()));
  expect_same(result, expected);
}

/// The same where sequences are in parts, too: each rank sends its positions to the next stage.
class InMeshInSequence : public ::testing::TestWithParam<Row> {};

TEST_P(InMeshInSequence, TrainsAsOneDevice) {
  const auto& expected = alone(std::get<0>(GetParam()));
  auto plan = plan_of(GetParam());
  plan.between = parallel::tensor::Between::parts;
  const auto result = train(plan);
  expect_same(result, expected);
}

std::vector<Shape> shapes_in_sequence() {
  const auto& all = shapes();
  return {all[1], all[2], all[3], all[4], all[6]};
}

INSTANTIATE_TEST_SUITE_P(Rows, InMeshInSequence,
                         ::testing::Combine(::testing::ValuesIn(learnt_in_parts()),
                                            ::testing::ValuesIn(shapes_in_sequence())),
                         row_name<Row>);

std::vector<Learnt> learnt_in_large() {
  const auto& all = learnt_in_parts();
  return {all[1], all[4]};
}

INSTANTIATE_TEST_SUITE_P(Large, InMesh,
                         ::testing::Combine(::testing::ValuesIn(learnt_in_large()),
                                            ::testing::ValuesIn(large_shapes())),
                         row_name<Row>);

INSTANTIATE_TEST_SUITE_P(Rows, InMesh,
                         ::testing::Combine(::testing::ValuesIn(learnt_in_parts()),
                                            ::testing::ValuesIn(shapes())),
                         row_name<Row>);

// Stages whose tensors are in parts on numbers of ranks of their own, with as many replicas each or
// not, train as one device would have done.
struct Uneven {
  std::string name;
  parallel::PartWeights parts;  ///< by stage
  Kind schedule;
  std::int64_t micro_batches = 4;
  int replicas = 1;
  std::vector<int> uneven = {};  ///< or by stage
  int chunks = 1;
  int level = 0;
  std::vector<double> shards = {};  ///< above level 0: weights of the replicas'
  std::vector<double> speeds = {};  ///< that these are dealt by
  parallel::tensor::Between between = parallel::tensor::Between::whole;
};

void PrintTo(const Uneven& shown, std::ostream* out) {
  *out << shown.name;
}

const std::vector<Uneven>& uneven_shapes() {
  static const std::vector<Uneven> all = {
      {"OneAndTwoGpipe", {{1}, {1, 1}}, Kind::gpipe},
      {"OneAndTwo1f1b", {{1}, {2, 1}}, Kind::one_f_one_b, 5},
      {"TwoAndOneZeroBubble", {{1, 2}, {1}}, Kind::zero_bubble, 5},
      {"TwoAndThree1f1b", {{2, 1}, {3, 1, 2}}, Kind::one_f_one_b},
      {"ThreeAndTwoZeroBubble", {{1, 1, 2}, {1, 1}}, Kind::zero_bubble},
      {"OneTwoOne1f1b", {{1}, {1, 2}, {1}}, Kind::one_f_one_b, 0},
      {"TwoOneTwoZeroBubble", {{1, 1}, {1}, {2, 1}}, Kind::zero_bubble, 6},
      {"TwoAndOneInterleaved", {{2, 1}, {1}}, Kind::interleaved, 4, 1, {}, 2},
      {"TwoReplicas1f1b", {{1}, {2, 1}}, Kind::one_f_one_b, 5, 2},
      {"TwoReplicasBySpeed",
       {{1, 1}, {1}},
       Kind::zero_bubble,
       6,
       2,
       {},
       1,
       0,
       {},
       {1, 1, 3, 2, 1, 5}},
      {"UnevenReplicas", {{1, 1}, {1, 1}}, Kind::one_f_one_b, 5, 0, {1, 2}},
      {"UnevenReplicasInSequence",
       {{2, 1}, {2, 1}},
       Kind::one_f_one_b,
       5,
       0,
       {2, 1},
       1,
       0,
       {},
       {},
       parallel::tensor::Between::parts},
      {"UnevenReplicasAndParts", {{1, 2}, {1}}, Kind::zero_bubble, 5, 0, {1, 2}},
      {"Level1", {{1}, {2, 1}}, Kind::one_f_one_b, 5, 2, {}, 1, 1, {3, 1}},
      {"Level2ZeroBubble", {{2, 1}, {1}}, Kind::zero_bubble, 4, 2, {}, 1, 2, {1, 2}},
      {"Level3", {{1}, {1, 2}}, Kind::one_f_one_b, 4, 2, {}, 1, 3, {1, 3}},
  };
  return all;
}

using UnevenRow = std::tuple<Learnt, Uneven>;

class InUnevenMesh : public ::testing::TestWithParam<UnevenRow> {};

TEST_P(InUnevenMesh, TrainsAsOneDevice) {
  const auto& [what, how] = GetParam();
  const auto& expected = alone(what);
  auto plan = what.plan;
  plan.shares = {{24}};
  plan.mesh = {
      .stages = static_cast<int>(how.parts.size()), .replicas = how.replicas, .uneven = how.uneven};
  plan.stage_tensor = how.parts;
  plan.schedule = how.schedule;
  plan.chunks = how.chunks;
  plan.cuts = cuts_of(plan, Cuts::late);
  plan.micro_batches = how.micro_batches;
  plan.zero_level = how.level;
  plan.shards = how.shards;
  plan.speeds = how.speeds;
  plan.between = how.between;
  expect_same(train(plan), expected);
}

INSTANTIATE_TEST_SUITE_P(Rows, InUnevenMesh,
                         ::testing::Combine(::testing::ValuesIn(learnt_in_parts()),
                                            ::testing::ValuesIn(uneven_shapes())),
                         row_name<UnevenRow>);

}  // namespace
}  // namespace bimetal::golden
