// A model in stages, whatever the schedule, the cuts, the replicas and what else is asked for, is
// trained as one device would have done.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "golden/rows.h"

namespace bimetal::golden {
namespace {

using parallel::schedule::Kind;

struct Stages {
  std::string name;
  int stages;
  Kind schedule;
  Cuts cuts = Cuts::early;
  std::vector<std::vector<std::int64_t>> shares = {{24}};  ///< by replica
  std::int64_t micro_batches = 0;
  int chunks = 1;
  std::vector<double> shards = {};  ///< of replicas, at ZeRO's levels
  std::vector<int> uneven = {};     ///< replicas by stage: the share is of all together
  std::vector<double> speeds = {};  ///< that these are dealt by; one 0: learnt
  int level = 1;                    ///< where there are shards
};

void PrintTo(const Stages& shown, std::ostream* out) {
  *out << shown.name;
}

const std::vector<Stages>& stages() {
  static const std::vector<Stages> all = {
      {"TwoLayerByLayer", 2, Kind::gpipe, Cuts::early, {{24}}, 1},
      {"TwoGpipe", 2, Kind::gpipe, Cuts::late},
      {"Two1f1b", 2, Kind::one_f_one_b, Cuts::early, {{24}}, 5},
      {"TwoInterleaved", 2, Kind::interleaved, Cuts::early, {{24}}, 6, 2},
      {"TwoZeroBubble", 2, Kind::zero_bubble, Cuts::late, {{24}}, 5},
      {"TwoOfTwo1f1b", 2, Kind::one_f_one_b, Cuts::late, {{17, 7}, {24, 0}, {1, 23}}, 4},
      {"TwoOfTwoZeroBubble", 2, Kind::zero_bubble, Cuts::early, {{17, 7}, {24, 0}, {1, 23}}, 4},
      {"TwoOfTwoSharded", 2, Kind::zero_bubble, Cuts::late, {{17, 7}, {24, 0}}, 4, 1, {1, 3}},
      {"ThreeGpipe", 3, Kind::gpipe, Cuts::early, {{24}}, 4},
      {"Three1f1b", 3, Kind::one_f_one_b, Cuts::late},
      {"ThreeZeroBubble", 3, Kind::zero_bubble, Cuts::early, {{24}}, 30},
      {"OneAndTwoGpipe", 2, Kind::gpipe, Cuts::early, {{24}}, 4, 1, {}, {1, 2}},
      {"OneAndTwo1f1b", 2, Kind::one_f_one_b, Cuts::late, {{24}}, 5, 1, {}, {1, 2}},
      {"OneAndTwoZeroBubble", 2, Kind::zero_bubble, Cuts::early, {{24}}, 7, 1, {}, {1, 2}},
      {"TwoAndOne1f1b", 2, Kind::one_f_one_b, Cuts::early, {{24}}, 0, 1, {}, {2, 1}},
      {"TwoAndOneSharded", 2, Kind::one_f_one_b, Cuts::late, {{24}}, 5, 1, {1, 3}, {2, 1}},
      {"OneAndTwoSharded", 2, Kind::zero_bubble, Cuts::late, {{24}}, 4, 1, {1, 3}, {1, 2}},
      {"ThreeAndOneGpipe", 2, Kind::gpipe, Cuts::late, {{24}}, 7, 1, {}, {3, 1}, {5, 1, 2, 1}},
      {"ThreeAndOneIdle", 2, Kind::one_f_one_b, Cuts::early, {{24}}, 2, 1, {}, {3, 1}},
      {"OneAndTwoLearnt", 2, Kind::one_f_one_b, Cuts::early, {{24}}, 6, 1, {}, {1, 2}, {0, 0, 0}},
      {"OneTwoOne1f1b", 3, Kind::one_f_one_b, Cuts::late, {{24}}, 30, 1, {}, {1, 2, 1}},
      {"TwoThreeOneGpipe", 3, Kind::gpipe, Cuts::early, {{24}}, 5, 1, {}, {2, 3, 1}},
  };
  return all;
}

/// With shards at levels 2 and 3.
const std::vector<Stages>& in_shards() {
  static const auto all = [] {
    const std::vector<Stages> rows = {
        {"TwoOfTwo", 2, Kind::one_f_one_b, Cuts::late, {{17, 7}, {24, 0}, {1, 23}}, 4, 1, {1, 3}},
        {"TwoOfTwoZeroBubble", 2, Kind::zero_bubble, Cuts::early, {{17, 7}}, 0, 1, {3, 1}},
        {"TwoOfThreeGpipe", 2, Kind::gpipe, Cuts::late, {{9, 8, 7}}, 0, 1, {1, 0, 2}},
        {"TwoAndOne", 2, Kind::one_f_one_b, Cuts::late, {{24}}, 5, 1, {1, 3}, {2, 1}},
        {.name = "ThreeAndOneZeroBubble",
         .stages = 2,
         .schedule = Kind::zero_bubble,
         .micro_batches = 8,
         .shards = {1, 3, 1},
         .uneven = {3, 1},
         .speeds = {5, 1, 2, 1}}};
    std::vector<Stages> at_levels = {
        {"ThreeOfTwoLevel2", 3, Kind::one_f_one_b, Cuts::early, {{2, 22}}, 0, 1, {2, 1}}};
    at_levels.front().level = 2;
    for (auto row : rows) {
      for (row.level = 2; row.level <= 3; ++row.level) {
        at_levels.push_back(row);
        at_levels.back().name += "Level" + std::to_string(row.level);
      }
    }
    return at_levels;
  }();
  return all;
}

/// For models of more blocks: pieces of several stages by turns.
const std::vector<Stages>& interleaved() {
  static const std::vector<Stages> all = {
      {"ThreeInterleaved", 3, Kind::interleaved, Cuts::early, {{24}}, 6, 2},
      {"TwoInterleavedByThrees", 2, Kind::interleaved, Cuts::late, {{24}}, 4, 3},
      {"TwoOfTwoInterleaved", 2, Kind::interleaved, Cuts::late, {{17, 7}, {24, 0}, {1, 23}}, 4, 2},
      {"TwoOfTwoInterleavedSharded", 2, Kind::interleaved, Cuts::early, {{5, 19}}, 4, 2, {1, 3}},
  };
  return all;
}

using Row = std::tuple<Learnt, Stages>;

/// Every model, and every technique that a stage has a part in.
bool wanted(const std::string& name) {
  const std::set<std::string> names = {
      "CnnAdam",     "CnnClippedByBoth",      "TokensTied",
      "Gpt2Dropout", "Gpt2DropoutRecomputed", "LlamaDropoutClipped"};
  return names.contains(name);
}

std::vector<Row> rows() {
  std::vector<Row> all;
  for (const auto& what : learnt()) {
    if (!wanted(what.name)) continue;
    const auto units = make_task(what.plan)->make_model().units.size();
    for (const auto* const ways : {&stages(), &in_shards()}) {
      for (const auto& how : *ways) {
        const bool few = units < static_cast<std::size_t>(how.stages * how.chunks);
        if (!few) all.emplace_back(what, how);
      }
    }
  }
  const Learnt deep{"Gpt2OfFourBlocks",
                    {.learns = Learns::gpt2,
                     .dropout = 0.1,
                     .blocks = 4,
                     .optimizer = Optimizer::adamw,
                     .steps = 6}};
  for (const auto& how : interleaved()) all.emplace_back(deep, how);
  return all;
}

class Pipeline : public ::testing::TestWithParam<Row> {};

TEST_P(Pipeline, TrainsAsOneDevice) {
  const auto& [what, how] = GetParam();
  const auto& expected = alone(what);
  auto plan = what.plan;
  plan.shares = how.shares;
  plan.mesh = {.stages = how.stages,
               .replicas = static_cast<int>(how.uneven.empty() ? how.shares.front().size() : 0),
               .uneven = how.uneven};
  plan.speeds = how.speeds;
  plan.learns_speeds = std::ranges::count(how.speeds, 0.0) > 0;
  plan.schedule = how.schedule;
  plan.chunks = how.chunks;
  plan.cuts = cuts_of(plan, how.cuts);
  plan.micro_batches = how.micro_batches;
  plan.zero_level = how.shards.empty() ? 0 : how.level;
  plan.shards = how.shards;
  const auto result = train(plan);
  expect_same(result, expected);
}

INSTANTIATE_TEST_SUITE_P(Rows, Pipeline, ::testing::ValuesIn(rows()), row_name<Row>);

TEST(PipelineRows, EveryModelHasItsRows) {
  EXPECT_GE(rows().size(), 100u);
}

}  // namespace
}  // namespace bimetal::golden
