// Stages whose tensors are in parts on numbers of ranks of their own, with as many replicas each or
// not, train as one device would have done.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <string>
#include <tuple>
#include <vector>

#include "golden/rows.h"

namespace bimetal::golden {
namespace {

using parallel::schedule::Kind;

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
